# Gives a script a directory for temporary files, TMPDIR, which ends with the script, and
# removes what killed runs left (integration/scratch). Scripts source it at the top of the
# checkout.

scratch=$PWD/bin/tools/scratch
go build -o "$scratch" ./integration/scratch/run
TMPDIR=$("$scratch" $$)
export TMPDIR
# A failure in the trap would be the exit code of the script.
trap '"$scratch" -remove "$TMPDIR" || true' EXIT
