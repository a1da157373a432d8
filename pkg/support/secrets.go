package support

import "regexp"

// removedText stands for a secret.
const removedText = "(left out)"

// secretWords are parts of names whose values are secrets.
const secretWords = `token|passw(?:or)?d|secret|credentials?|api[_-]?key|access[_-]?key|private[_-]?key`

var (
	// secretKey matches keys of JSON whose string is a secret. "secretName" and
	// "tokenExpirationSeconds" are none.
	secretKey = regexp.MustCompile(`(?i)(?:` + secretWords + `|client-key-data|client-certificate-data)$`)
	// secretVariable matches the names of environment variables.
	secretVariable = regexp.MustCompile(`(?i)` + secretWords)
)

// secretTexts match secrets inside a text; what their groups match stays.
var secretTexts = []*regexp.Regexp{
	regexp.MustCompile(`()-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?()`),
	regexp.MustCompile(`()\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*)?()`), // JSON web tokens
	regexp.MustCompile(`(?i)(authorization["']?\s*[:=]\s*["']?(?:basic|bearer)\s+)[^\s"']+()`),
	regexp.MustCompile(`(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{16,}()`),
	regexp.MustCompile(`(://)[^/\s:@"']+:[^/\s@"']+(@)`),
	regexp.MustCompile(`(?i)((?:` + secretWords + `|client-key-data|client-certificate-data)\\*["']?\s*[:=]\s*\\*["']?)[^\s"',;{}\[\]\\(]+()`),
}

// withoutSecrets returns a text without the secrets in it, and their number.
func withoutSecrets(text string) (clean string, removed int) {
	for _, pattern := range secretTexts {
		text = pattern.ReplaceAllStringFunc(text, func(found string) string {
			removed++
			m := pattern.FindStringSubmatch(found)
			return m[1] + removedText + m[2]
		})
	}
	return text, removed
}

// dropped are keys of Kubernetes' objects that repeat what is elsewhere in them.
var dropped = map[string]bool{"managedFields": true, "kubectl.kubernetes.io/last-applied-configuration": true}

// scrub returns a JSON value without the secrets in it, and adds their number to removed.
func scrub(value any, removed *int) any {
	switch v := value.(type) {
	case string:
		clean, n := withoutSecrets(v)
		*removed += n
		return clean
	case []any:
		for i := range v {
			v[i] = scrub(v[i], removed)
		}
	case map[string]any:
		name, _ := v["name"].(string)
		for key, of := range v {
			text, isText := of.(string)
			switch {
			case dropped[key]:
				delete(v, key)
			case isText && text != "" && (secretKey.MatchString(key) || key == "value" && secretVariable.MatchString(name)):
				v[key] = removedText
				*removed++
			default:
				v[key] = scrub(of, removed)
			}
		}
	}
	return value
}
