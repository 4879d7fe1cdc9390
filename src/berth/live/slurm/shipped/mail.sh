#!/bin/bash
# berth's MailProg: the mail that Slurm sends at a job's end has berth's report in it. Slurm calls it in its own way:
#   mail.sh -s SUBJECT USER
if [[ "$2" =~ Job_id=([0-9_+]+).*\ (Ended|Failed|Completed|TIMEOUT|OUT_OF_MEMORY) ]]; then
    id=${BASH_REMATCH[1]}
    # Not waited for: the Epilog's results reach berth's log with its next query.
    (timeout 90 "@BERTH@" slurm report "$id" --wait 60 --state "@STATE@" 2>/dev/null | exec "@MAIL@" "$@") >/dev/null 2>&1 &
    exit 0
fi
exec "@MAIL@" "$@"
