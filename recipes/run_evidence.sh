#!/usr/bin/env bash
# Train the systems of the evidence on Multi30k or IWSLT14: all trainings of the task's plan that
# have no result yet.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

usage() {
    cat << END
Usage: $(basename "$0") DATA_DIR [--task NAME] [--jobs N] [--threads N] [--nice N] [--left]
       [--out DIR] [--results DIR]

Runs the trainings of $ROOT/recipes/evidence/plans/TASK.yaml that have no result yet. Each training
runs all steps from the raw text in DATA_DIR to the scores. Its result is saved in RESULTS, and
\`fusetk report RESULTS\` prints the table.

DATA_DIR has the files of the task with the endings .de and .en, plain or .gz. For multi30k they are
train, val and test_2016_flickr, the untokenised text of https://github.com/multi30k/dataset. For
iwslt14 they are train, valid and test, which are tokenised, escaped and lowercased.

The results are those of one text: for another text, give another --out and another --results.

Trainings run in the background of other work, with a low priority. SIGTERM stops them: they save
their state, and the next call continues. A second call with the same --out at the same time is
refused. Calls with different --out and the same --results share the trainings: two calls never run
the same training at once, and each call waits for the trainings of the others. A training that has
diverged is not repeated. A message names what to delete to repeat it.

  --task NAME     multi30k (the default) or iwslt14
  --jobs N        number of trainings at once (1)
  --threads N     CPU threads of each training (number of processors / jobs)
  --nice N        priority of the trainings, 19 is the lowest (10)
  --left          only print the trainings that are left, and an estimate of their time
  --out DIR       the folder of runs ($ROOT/work/evidence_TASK)
  --results DIR   the folder of results ($ROOT/results/TASK)
END
}

data='' task=multi30k jobs=1 threads='' out='' results=''
options=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --task) need_value "$1" $#; task=$2; shift 2 ;;
        --jobs) need_value "$1" $#; jobs=$2; shift 2 ;;
        --threads) need_value "$1" $#; threads=$2; shift 2 ;;
        --nice)
            need_value "$1" $#
            [[ $2 =~ ^-?[0-9]+$ ]] || die "--nice is a whole number, not $2"
            options+=(--nice "$2"); shift 2 ;;
        --left) options+=(--left); shift ;;
        --out) need_value "$1" $#; out=$(absolute "$2"); shift 2 ;;
        --results) need_value "$1" $#; results=$(absolute "$2"); shift 2 ;;
        -*) die "there is no option $1; -h shows the usage" ;;
        *)
            [ -z "$data" ] || die "one DATA_DIR is enough, $1 is too much"
            data=$(absolute "$1")
            shift
            ;;
    esac
done
[ -n "$data" ] || die "give the folder of the text; -h shows the usage"
number='^[1-9][0-9]*$'
[[ $jobs =~ $number ]] || die "--jobs is a whole number above 0, not $jobs"
[[ -z $threads || $threads =~ $number ]] ||
    die "--threads is a whole number above 0, not $threads"
case $task in
    multi30k) check_multi30k "$data" ;;
    iwslt14) check_files "$data" {train,valid,test}.{de,en} ;;
    *) die "--task is multi30k or iwslt14, not $task" ;;
esac
need_fusetk
if [ -z "$threads" ]; then
    usable='from fusetk.processor import usable_processors; print(usable_processors())'
    processors=$(python3 -c "$usable") || die 'python3 cannot count the usable processors'
    threads=$((processors / jobs))
    [ "$threads" -gt 0 ] || threads=1
fi

exec python3 "$ROOT/recipes/evidence/run_queue.py" \
    "$ROOT/recipes/evidence/plans/$task.yaml" --recipes "$ROOT/recipes/evidence/$task" \
    --raw "$data" --jobs "$jobs" --threads "$threads" --out "${out:-$ROOT/work/evidence_$task}" \
    --results "${results:-$ROOT/results/$task}" ${options[@]+"${options[@]}"}
