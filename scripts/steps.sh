# Functions of check.sh and test.sh, which source it at the top of the checkout.

report=$PWD/bin/tools/testreport
go build -o "$report" ./scripts/testreport

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
steps=()
failed=0

# step NAME COMMAND… runs the command and records how it ended.
step() {
	local name=$1 began=$SECONDS ended=ok
	shift
	echo
	echo "== $name"
	"$@" || { ended=FAILED; failed=1; }
	steps+=("$(printf '%-42s %-7s %4d s' "$name" "$ended" $((SECONDS - began)))")
}

# gotest FLAGS… PACKAGES… runs go test and keeps its counts for the summary.
gotest() { go test -json -timeout 20m "$@" | "$report" -counts "$work/counts"; }

vet() {
	local module
	for module in $(scripts/modules.sh); do
		(cd "$module" && go vet ./...) || return 1
	done
}

# summary [FLAGS…] prints the outcome of each step, and exits. The flags are those of
# testreport.
summary() {
	echo
	echo "== summary"
	printf '%s\n' "${steps[@]}"
	"$report" "$@" -sum "$work/counts" || failed=1
	exit "$failed"
}
