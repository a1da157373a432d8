# Functions of check.sh and test.sh, which source it at the top of the checkout.
#
# What a run leaves is in bin/test/SCRIPT: the steps with their start, the events of go test
# for each step (JSON, see "go doc test2json") and the counts; in bin/test/SCRIPT.before is
# what the run before it left.

report=$PWD/bin/tools/testreport
go build -o "$report" ./scripts/testreport

run=$PWD/bin/test/$(basename "$0" .sh)
rm -rf "$run.before"
[[ ! -e $run ]] || mv "$run" "$run.before"
mkdir -p "$run"
failed=0

# busy prints the time that the machine's CPUs have worked, in hundredths of a second.
busy() { awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 }' /proc/stat; }

# step NAME COMMAND… runs the command and records how it ended.
step() {
	local name=$1 ended=ok start worked
	shift
	echo
	echo "== $name"
	start=$(date +%s%N) worked=$(busy)
	"$@" || { ended=FAILED; failed=1; }
	awk -v name="$name" -v start="$start" -v end="$(date +%s%N)" -v worked="$(($(busy) - worked))" -v ended="$ended" 'BEGIN {
		printf "{\"Name\":\"%s\",\"Start\":%d,\"Seconds\":%.1f,\"CPU\":%.1f,\"Ended\":\"%s\"}\n", name, start / 1e9, (end - start) / 1e9, worked / 100, ended
	}' >>"$run/steps"
}

# gotest NAME FLAGS… PACKAGES… runs go test, and keeps its events as NAME and its counts.
gotest() {
	local name=$1
	shift
	go test -json -timeout 40m "$@" | "$report" -into "$run" -as "$name"
}

# summary [FLAGS…] prints the outcome of each step, and exits. The flags are those of
# testreport.
summary() {
	echo
	echo "== summary"
	"$report" "$@" -sum "$run" -before "$run.before" || failed=1
	exit "$failed"
}
