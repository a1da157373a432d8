#!/usr/bin/env bash
# Fails on phrases that must not come back. Called by scripts/lint.sh; runs in a second.
#
# A doc comment says "X returns …" and "X reports whether …", as the Go standard library
# does. Spelling is American; the linter misspell knows some of these words, but reads
# only Go.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failed=0
# An unpacked archive has no index; .gitignore counts in both.
where=(--untracked)
git rev-parse --is-inside-work-tree >/dev/null 2>&1 && git ls-files --error-unmatch scripts/prose.sh >/dev/null 2>&1 ||
	where=(--no-index --exclude-standard)

# forbid MESSAGE REGEXP FILES… prints the lines that match.
forbid() {
	local message=$1 regexp=$2 found code=0
	shift 2
	found=$(git grep -nIiE "${where[@]}" "$regexp" -- "$@" ':!scripts/prose.sh' ':!integration/rig/module' ':(exclude,glob)**/testdata/**') || code=$?
	if ((code > 1)); then # 1 is that nothing matches
		echo "lint: git grep failed with $code" >&2
		exit 1
	fi
	if [[ -n $found ]]; then
		echo "lint: $message:"
		echo "$found"
		failed=1
	fi
}

text=('*.go' '*.sh' '*.md' '*.yaml' '*.yml' '*.tpl' '*.txt' Makefile)
forbid 'a doc comment begins "X returns …", not "X gives …" or "X says …"' \
	'^[[:space:]]*// [[:alnum:]_]+ (gives|says|tells( |$))' '*.go'
forbid '"reports whether", not "says whether" or "tells whether"' \
	'\b(say|says|tell|tells) (whether|if)\b' '*.go' '*.sh' '*.yaml' '*.yml' Makefile
forbid 'American spelling' \
	'programme|neighbour|behaviour|colour|honour|favour|flavour|rumour|(summar|recogn|normal|initial|serial|organ|optim|minim|synchron|author|general|special)is(e|ed|es|ing|ation)\b|analys(e|ed|ing)\b|licence|catalogue|cancelled|cancelling|labell|modell|travell|dialled|dialling|signall|learnt|spelt|fulfil\b|centre|artefact|defence' \
	"${text[@]}"
forbid '"X has kind Y, want Z" or "X is not a Z", not "X is no Z but Y"; and name who, not "whoever"' \
	'\bis no [[:alpha:]]+ but\b|\bwho(s|so)?ever\b' "${text[@]}"
# The READMEs and the demo have the tagline.
forbid '"returns" or "is returned", not "comes home"' \
	'\b(com(e|es|ing)|came|fall(s|en|ing)?|fell|br(ing|ings|inging|ought)( it| them| the NIC)?) home\b' \
	'*.go' '*.md' '*.yaml' ':!README*.md' ':!CHANGELOG.md' ':!scripts/demo' ':!docs/guide/hardware.md' ':!docs/design/glossary.md' ':!docs/doc*_test.go'
exit "$failed"
