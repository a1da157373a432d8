package support

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

// removedText is written in place of a secret.
const removedText = "(left out)"

// secretWords are in names whose values may be secrets. [secretName] decides.
const secretWords = `token|passw(?:or)?d|passphrase|pass|pwd|secret|credential|(?:api|access|private|auth|encryption|signing|ssh|master|shared|account)[_.-]?key|` +
	`client-key-data|client-certificate-data|dockerconfigjson|dockercfg`

// plainWords are in all names that have secretWords.
var plainWords = []string{"token", "pass", "pwd", "secret", "credential", "key", "client-certificate-data", "docker"}

var (
	secretParts = regexp.MustCompile(`(?i)` + secretWords)
	// passParts match "DB_PASS", "PGPASS" and "dbPass", but not "bypass", "passed" and "PWD".
	passParts = regexp.MustCompile(`(?i:(?:^|[_.-]|^pg|^my)pass(?:$|[_.\d-])|[_.-]pwd(?:$|[_.\d-]))|[a-z\d](?:Pass|Pwd)(?:$|[_.\d-])`)
	// noSecrets match the ends of names whose values name a secret or are about it: "secretName",
	// "token-file", "tokenExpirationSeconds".
	noSecrets = regexp.MustCompile(`(?i)(?:file|names?|namespace|path|dir|ref|type|lifetime|seconds|ttl)$`)
)

// secretName reports whether the value of a key, flag or variable with this name is a secret.
func secretName(name string) bool {
	if noSecrets.MatchString(name) {
		return false
	}
	for _, word := range secretParts.FindAllString(name, -1) {
		if word = strings.ToLower(word); word != "pass" && word != "pwd" {
			return true
		}
	}
	return passParts.MatchString(name)
}

const (
	keyBegin = `-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----`
	keyEnd   = `-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----`

	// quote is a quote: one inside a string of JSON, or one of HTML.
	quote = `(?:\\*["']|&#3[49];|&quot;)`
)

// secretTexts match secrets in a text that contains the word. The parts that their groups match are
// kept.
var secretTexts = []struct {
	word string // in lower case
	*regexp.Regexp
}{
	// The lines of a key may have the times of a log before them. The end of a text may lack a key's
	// begin, and the begin its end.
	{"private key", regexp.MustCompile(`(?s)()` + keyBegin + `.*?(?:` + keyEnd + `|\z)()`)},
	{"private key", regexp.MustCompile(`(?s)()\A.*?` + keyEnd + `()`)},
	{"eyj", regexp.MustCompile(`eyJ()[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*)?()`)}, // JSON web tokens
	{"authorization", regexp.MustCompile(`(?i)(authorization` + quote + `?\s*[:=]\s*` + quote + `?(?:basic|bearer|token|apikey|negotiate)\s+)[^\s"'\\(<][^\s"'\\<]*()`)},
	{"bearer", regexp.MustCompile(`(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{16,}()`)},
}

// authority matches what follows the first "://" of one or more URLs up to their last "@".
var authority = regexp.MustCompile(`://[^\s"<>]*@`)

// withoutUsers returns the match of [authority] without users and passwords, and the number of
// those that were removed. An "@" in a path is kept, for example the "@" before the checksum of an
// image.
func withoutUsers(found string) (clean string, removed int) {
	var out strings.Builder
	parts := strings.Split(found, "://")
	for i := 1; i < len(parts); i++ {
		part := parts[i]
		if endsInPassword(part) {
			first := i
			for i+1 < len(parts) && !strings.Contains(parts[i], "@") {
				i++
			}
			part = strings.Join(parts[first:i+1], "://")
		}
		end := strings.LastIndexByte(part, '@')
		host, _, hasPath := strings.Cut(part[:max(end, 0)], "/")
		if end < 0 || hasPath && !strings.Contains(host, ":") {
			out.WriteString("://" + part)
			continue
		}
		out.WriteString("://" + removedText + part[end:])
		removed++
	}
	return out.String(), removed
}

// endsInPassword reports whether what is between two "://" has a user and the begin of a password,
// which has the second one.
func endsInPassword(part string) bool {
	host := part
	if n := strings.IndexAny(part, "/?#,;|&'()"); n >= 0 {
		host = part[:n]
	}
	_, port, _ := strings.Cut(host, ":")
	return !strings.HasPrefix(host, "[") && strings.Trim(port, "0123456789") != ""
}

// image matches the reference of an image by its checksum, whose "@" ends no user.
var image = regexp.MustCompile(`@sha(?:256|512):`)

var (
	// sign matches what is between a name and its value. Its group is the quote of JSON.
	sign = regexp.MustCompile(`^(` + quote + `?)[ \t]*(?::=|=>|[:=])[ \t]*`)
	// space matches what is between a flag and its value, which may be the next of a list.
	space = regexp.MustCompile(`^(?:["',]*[ \t]*\r?\n[ \t]*-[ \t]+|` + quote + `?[ \t]*,(?:\s|\\[nrt])*|` + quote + `?[ \t]+)`)
	// nextFlag matches a flag where a value might be.
	nextFlag = regexp.MustCompile(`^(?:-|` + quote + `--)`)
	// nextLine matches what is before a value of JSON in the next line. Its group begins the value.
	nextLine = regexp.MustCompile(`^\s*\n\s*([\[{]|` + quote + `)`)
	// logTime is what runtimes and the API server write before each line of a log.
	logTime = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\S+ (?:(?:stdout|stderr) [FP] )?`)
	// blockSign begins a block of lines in YAML, after ": ".
	blockSign = regexp.MustCompile(`^(?:[|>][\d+-]*)?[ \t]*(?:#[^\n]*)?\r?(?:\n|$)`)
	// noMore matches the end of a line without a value.
	noMore   = regexp.MustCompile(`^\r?(?:\n|$)`)
	number   = regexp.MustCompile(`^-?\d[\d.eE+-]*`)
	constant = regexp.MustCompile(`^(?:true|false|null)(?:[\s,;}\]<]|$)`)
)

// withoutSecrets returns a text without the secrets in it, and their number. In HTML a value ends
// with its element.
func withoutSecrets(text string, isHTML bool) (clean string, removed int) {
	low := lower(text)
	for _, pattern := range secretTexts {
		if !strings.Contains(low, pattern.word) {
			continue
		}
		text = pattern.ReplaceAllStringFunc(text, func(found string) string {
			removed++
			m := pattern.FindStringSubmatch(found)
			return m[1] + removedText + m[2]
		})
	}
	text = image.ReplaceAllStringFunc(text, func(found string) string { return "\x00" + found[1:] })
	text = authority.ReplaceAllStringFunc(text, func(found string) string {
		clean, n := withoutUsers(found)
		removed += n
		return clean
	})
	text = strings.ReplaceAll(text, "\x00sha", "@sha")
	text, n := withoutValues(text, isHTML)
	return text, removed + n
}

// withoutValues removes the values of secret names, and the arguments after secret flags.
func withoutValues(text string, isHTML bool) (clean string, removed int) {
	var out strings.Builder
	kept := 0 // the text before is in out
	next := wordsOf(text)
	for pos := 0; ; {
		begin := next(pos)
		if begin < 0 {
			break
		}
		pos = begin
		for begin > kept && isNameByte(text[begin-1]) {
			begin--
		}
		for pos < len(text) && isNameByte(text[pos]) {
			pos++
		}
		name := text[begin:pos]
		if !secretName(name) {
			continue
		}
		from, to := pos, pos
		if m := sign.FindStringSubmatch(text[pos:]); m != nil {
			from += len(m[0])
			to = endOfValue(text, begin, from, m[1] != "", isHTML)
		} else if strings.HasPrefix(name, "--") {
			from += len(space.FindString(text[pos:]))
			if rest := text[from:]; from > pos && !nextFlag.MatchString(rest) && !strings.HasPrefix(rest, removedText) {
				to = endOfWord(text, from, isHTML)
			}
		}
		if to > from {
			out.WriteString(text[kept:from] + removedText)
			removed++
			kept, pos = to, to
		}
	}
	return out.String() + text[kept:], removed
}

// wordsOf returns a function that returns where at or after a place the next of [plainWords] begins
// in the text, -1 for nowhere. Logs are long: a regular expression takes a second for a megabyte.
func wordsOf(text string) func(pos int) int {
	low := lower(text)
	found := make([]int, len(plainWords))
	for i := range found {
		found[i] = -1
	}
	return func(pos int) int {
		first := len(low)
		for i, word := range plainWords {
			if found[i] < pos {
				found[i] = len(low)
				if n := strings.Index(low[pos:], word); n >= 0 {
					found[i] = pos + n
				}
			}
			first = min(first, found[i])
		}
		if first == len(low) {
			return -1
		}
		return first
	}
}

// lower returns a text of the same length with small ASCII letters.
func lower(text string) string {
	low := []byte(text)
	for i, c := range low {
		if 'A' <= c && c <= 'Z' {
			low[i] = c + 'a' - 'A'
		}
	}
	return string(low)
}

func isNameByte(c byte) bool {
	return c == '_' || c == '-' || c == '.' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// endOfValue returns where the value ends that begins at from; from, if it is no secret. Its name
// begins at name, and is in quotes as JSON has it if isQuoted.
func endOfValue(text string, name, from int, isQuoted, isHTML bool) int {
	rest := text[from:]
	if strings.HasPrefix(rest, removedText) || constant.MatchString(rest) {
		return from
	}
	line := strings.LastIndexByte(text[:name], '\n') + 1
	before := logTime.ReplaceAllString(text[line:name], "")
	opensLine := strings.Trim(before, " \t-\"'") == ""
	isYAML := strings.HasSuffix(strings.TrimRight(text[:from], " \t"), ":")
	begin := noMore
	if isYAML && text[from-1] != ':' { // else "#" begins no comment
		begin = blockSign
	}
	if loc := begin.FindStringIndex(rest); loc != nil {
		to := from + len(strings.TrimRight(rest[:loc[1]], " \t\r\n"))
		if m := nextLine.FindStringSubmatchIndex(rest); m != nil && isQuoted {
			to = max(to, endOfEnclosed(text, from+m[2], true, isHTML))
		}
		if opensLine {
			to = max(to, endOfBlock(text, from, from+loc[1], len(strings.TrimRight(before, `"'`))))
		}
		return to
	}
	if isQuoted {
		if n := len(number.FindString(rest)); n > 0 && n < len(rest) && strings.ContainsRune(",}]< \t\r\n", rune(rest[n])) {
			return from + n
		}
	}
	if strings.ContainsAny(rest[:1], `{["'`) {
		return endOfEnclosed(text, from, isQuoted || isYAML, isHTML)
	}
	if opensLine && !isQuoted && !isHTML && !strings.ContainsAny(rest[:1], `"'\`) && text[from-1] == ' ' { // a value of YAML may have spaces
		return endOfLine(text, from)
	}
	return endOfWord(text, from, isHTML)
}

// endOfLine returns where the line with text[from] ends.
func endOfLine(text string, from int) int {
	if n := strings.IndexByte(text[from:], '\n'); n >= 0 {
		return from + n
	}
	return len(text)
}

// endOfBlock returns where the lines of a YAML value end, which begin at lines, and are indented more
// than their key, or are a list. The key's line ends with the value's sign, at from.
func endOfBlock(text string, from, lines, indent int) int {
	to := from
	for pos := lines; pos < len(text); {
		end := endOfLine(text, pos)
		line := logTime.ReplaceAllString(text[pos:end], "")
		content := strings.TrimLeft(line, " \t")
		deep := len(line) - len(content)
		isBlank := strings.TrimSpace(line) == ""
		if !isBlank && deep <= indent && (deep < indent || !strings.HasPrefix(content, "- ")) {
			break
		}
		if !isBlank {
			to = end
		}
		pos = end + 1
	}
	return to
}

// endOfEnclosed returns where the brackets or the string end that begin at from, with what a word
// has behind them. In JSON and YAML this ends with a comma.
func endOfEnclosed(text string, from int, hasCommas, isHTML bool) int {
	to := from
	if inBrackets := text[from] == '{' || text[from] == '['; inBrackets {
		to += endOfBrackets(text[from:])
	} else {
		to, hasCommas = endOfWord(text, from, isHTML), true
	}
	if isHTML {
		return max(to, endOfWord(text, from, true)) // the quotes between the brackets are others
	}
	ends := " \t\r\n"
	if hasCommas {
		ends += "\"'`\\,;)}]<>&|"
	}
	if n := strings.IndexAny(text[to:], ends); n >= 0 {
		return to + n
	}
	return len(text)
}

// endOfBrackets returns where the brackets that begin a text end. Those in strings do not count.
func endOfBrackets(text string) int {
	depth, line := 0, 0 // line is the end of the line with text[i]
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		case '"', '\'', '\\':
			if strings.IndexByte("{[(:=, \t\r\n", text[i-1]) < 0 {
				continue // an apostrophe
			}
			if line < i {
				line = endOfLine(text, i)
			}
			if end := endOfString(text[:line], i); end > i {
				i = end - 1
			}
		}
	}
	return len(text)
}

// endOfString returns where the string that begins at from ends; from, if none begins there or it is
// not closed.
func endOfString(text string, from int) int {
	rest := strings.TrimLeft(text[from:], `\`)
	if rest == "" || rest[0] != '"' && rest[0] != '\'' {
		return from
	}
	if end := endOfWord(text, from, false); end < len(text) || len(rest) > 1 && text[end-1] == rest[0] {
		return end
	}
	return from
}

// endOfWord returns where a word ends that begins at from: with the closing quote, or before a
// space. Quotes inside a string of JSON have backslashes before them. A quote that is not closed
// goes to the end of the text.
func endOfWord(text string, from int, isHTML bool) int {
	if isHTML {
		if n := strings.IndexByte(text[from:], '<'); n >= 0 {
			return from + n
		}
		return len(text)
	}
	slashes := 0
	pos := from
	for ; pos < len(text) && text[pos] == '\\'; pos++ {
		slashes++
	}
	if pos < len(text) && (text[pos] == '"' || text[pos] == '\'') {
		quote, run := text[pos], 0
		for pos++; pos < len(text); pos++ {
			switch {
			case text[pos] == '\\':
				run++
				continue
			case text[pos] == quote && run >= slashes && (run-slashes)%(2*slashes+2) == 0:
				return pos + 1
			}
			run = 0
		}
		return len(text)
	}
	if n := strings.IndexAny(text[from:], " \t\r\n"); n >= 0 {
		return from + n
	}
	return len(text)
}

// dropped are keys of Kubernetes' objects that repeat what is elsewhere in them.
var dropped = map[string]bool{"managedFields": true, "kubectl.kubernetes.io/last-applied-configuration": true}

// references are the keys of objects that name a Secret or a token, and have none.
var references = map[string]bool{
	"secretName": true, "name": true, "namespace": true, "optional": true, "defaultMode": true, "items": true,
	"expirationSeconds": true, "path": true, "audience": true,
}

// refers reports whether the value of a secret key only names a secret, or is too small to be one.
func refers(value any) bool {
	switch v := value.(type) {
	case nil, bool:
		return true
	case string:
		return v == "" || v == removedText
	case []any:
		for _, element := range v {
			if _, isObject := element.(map[string]any); !isObject || !refers(element) {
				return false
			}
		}
		return true
	case map[string]any:
		for key := range v {
			if !references[key] {
				return false
			}
		}
		return true
	}
	return false
}

// secretFlag matches an argument whose next one is its value.
var secretFlag = regexp.MustCompile(`^--?[\w.-]+$`)

// scrub returns a JSON value without the secrets in it, and adds their number to removed.
func scrub(value any, removed *int) any {
	switch v := value.(type) {
	case string:
		return scrubText(v, removed)
	case []any:
		for i := range v {
			flag, text := "", ""
			if i > 0 {
				flag, _ = v[i-1].(string)
				text, _ = v[i].(string)
			}
			if text != "" && text != removedText && !strings.HasPrefix(text, "--") && secretFlag.MatchString(flag) && secretName(flag) {
				v[i] = removedText
				*removed++
				continue
			}
			v[i] = scrub(v[i], removed)
		}
	case map[string]any:
		name, _ := v["name"].(string)
		if name == "" {
			name, _ = v["key"].(string)
		}
		for key, element := range v {
			switch {
			case dropped[key]:
				delete(v, key)
			case (secretName(key) || key == "value" && secretName(name)) && !refers(element):
				v[key] = removedText
				*removed++
			default:
				v[key] = scrub(element, removed)
			}
		}
	}
	return value
}

// scrubText is scrub for a string, which may be JSON itself: the configuration of a network, an
// annotation.
func scrubText(text string, removed *int) string {
	if begin := strings.TrimSpace(text); strings.HasPrefix(begin, "{") || strings.HasPrefix(begin, "[") {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		var document any
		if decoder.Decode(&document) == nil && !decoder.More() {
			n := 0
			document = scrub(document, &n)
			var out bytes.Buffer
			e := json.NewEncoder(&out)
			e.SetEscapeHTML(false)
			if n > 0 && e.Encode(document) == nil {
				*removed += n
				return strings.TrimSuffix(out.String(), "\n")
			}
		}
	}
	clean, n := withoutSecrets(text, false)
	*removed += n
	return clean
}
