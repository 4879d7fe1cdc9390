#!/bin/bash
# berth's MailProg: the mail that Slurm sends at a job's end has berth's report in it. Slurm calls it in its own way:
#   mail.sh -s SUBJECT USER
if [ "$1" = --report ]; then
    id=$2
    shift 2
    # The Epilog's results reach berth's log with its next query.
    timeout 90 "@BERTH@" slurm report "$id" --wait 60 --state "@STATE@" 2>/dev/null | exec "@MAIL@" "$@"
elif [[ "$2" =~ Job_id=([0-9_+]+).*\ (Ended|Failed|Completed|TIMEOUT|OUT_OF_MEMORY) ]]; then
    # In a session of its own: Slurm ends what its MailProg leaves behind.
    setsid "$0" --report "${BASH_REMATCH[1]}" "$@" </dev/null >/dev/null 2>&1 &
else
    exec "@MAIL@" "$@"
fi
