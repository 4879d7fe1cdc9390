# Configurations of sites: `site NAME` changes slurm.conf and gres.conf of slurm_cluster.sh, in whose folder it runs.
devices() { sed -n 's/.*File=//p' gres.conf | head -n 1 | tr ',' '\n' | sed 's/\(.*\)\[0-1\]/\10\n\11/'; }
first() { devices | head -n 1; }
second() { devices | tail -n 1; }
on_all() { # LINES OF gres.conf
    printf 'NodeName=node[1-2] %s\n' "$@"
}
shards() { sed -i 's/GresTypes=gpu/GresTypes=gpu,shard/; s/Gres=gpu:v100:2/&,shard:8/' slurm.conf; }
plain() { :; }
shards_of_a_node() { shards && on_all 'Name=shard Count=8' >>gres.conf; }
shards_of_each_gpu() {
    shards
    on_all "Name=gpu Type=v100 File=$(first)" "Name=gpu Type=v100 File=$(second)" \
        "Name=shard Count=4 File=$(first)" "Name=shard Count=4 File=$(second)" >new
    mv new gres.conf
}
mps() {
    sed -i 's/GresTypes=gpu/GresTypes=gpu,mps/; s/Gres=gpu:v100:2/&,mps:200/' slurm.conf
    on_all 'Name=mps Count=200' >>gres.conf
}
mig() {
    on_all "Name=gpu Type=v100 MultipleFiles=$(first),/dev/full" "Name=gpu Type=v100 MultipleFiles=$(second),/dev/random" >new
    mv new gres.conf
}
autodetect() { echo AutoDetect=nvml >>gres.conf; }
autodetect_off() { sed -i '1i AutoDetect=off' gres.conf; }
included_nodes() {
    grep ^NodeName slurm.conf >nodes.conf
    sed -i 's/^NodeName.*/Include nodes.conf/' slurm.conf
}
included_gpus() {
    mkdir site.d
    mv gres.conf site.d/gpus
    echo 'include site.d/gpus' >gres.conf
}
included_by_cluster() {
    mkdir site.d
    grep ^NodeName slurm.conf >site.d/sandbox.nodes
    sed -i "s#^NodeName.*#Include $PWD/site.d/%c.nodes#" slurm.conf
}
default_line() { sed -i 's/ Gres=gpu:v100:2//; s/^NodeName/NodeName=DEFAULT Gres=gpu:v100:2 Features=fast\n&/' slurm.conf; }
node_set() {
    sed -i 's/Nodes=ALL/Nodes=fast/; s/^PartitionName/NodeSet=fast Nodes=node[1-2]\n&/' slurm.conf
}
unlike_nodes() {
    local rest='NodeAddr=127.0.0.1 CPUs=16 RealMemory=64000'
    sed -i "s|^NodeName.*|NodeName=node1 $rest Port=17001 Gres=gpu:v100:2\nNodeName=node2 $rest Port=17002 Gres=gpu:a100:1|" slurm.conf
    echo "NodeName=node2 Name=gpu Type=a100 File=$(first)" >new
    sed 's/node.1-2./node1/' gres.conf >>new
    mv new gres.conf
}
several_partitions() {
    sed -i 's/Nodes=ALL/Nodes=node1/' slurm.conf
    echo 'PartitionName=other Nodes=node2' >>slurm.conf
}
licences() { echo 'Licenses=matlab:4,fluent:2' >>slurm.conf; }
reservation() {
    echo 'scontrol create reservation ReservationName=later StartTime=now+1hour Duration=60 Nodes=node1 Users=root' >change.sh
}
jobstats() {
    mkdir prolog.d
    echo '#!/bin/sh' | tee prolog.d/1 >jobstats.sh
    chmod +x prolog.d/1 jobstats.sh
    printf '%s\n' "Prolog=$PWD/prolog.d/*" "Epilog=$PWD/jobstats.sh" "EpilogSlurmctld=$PWD/jobstats.sh" >>slurm.conf
}
own_plugin() {
    echo 'JobSubmitPlugins=lua # ours' >>slurm.conf
    for name in submit modify; do
        echo "function slurm_job_$name(...) return slurm.SUCCESS end"
    done >job_submit.lua
    printf 'return slurm.SUCCESS' >>job_submit.lua
}
no_types() {
    sed -i 's/gpu:v100:2/gpu:2/' slurm.conf
    sed -i 's/ Type=v100//' gres.conf
}
one_gres_conf_each() { sed -i 's/NodeName=[^ ]* //' gres.conf; }
cores() {
    printf '%s\n' "NodeName=node[1-2] Name=gpu Type=v100 File=$(first) Cores=0-7" \
        "nodename=node[1-2] name=gpu type=v100 file=$(second) cores=8-15" >new
    mv new gres.conf
}
odd_lines() {
    sed -i 's/ CPUs=16/ \\\n   CPUs=16/; s/^PartitionName/# Grafikkarten f\xfcr alle\n&/' slurm.conf
}
other_gres() {
    sed -i 's/GresTypes=gpu/GresTypes=nic,gpu/; s/Gres=gpu:v100:2/Gres=nic:2,gpu:v100:2/' slurm.conf
    on_all 'Name=nic Count=2' >>gres.conf
}
