package support

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestTextsAreWithoutSecrets: in each text, a secret contains the word Planted. Words that contain
// kept are not secrets.
func TestTextsAreWithoutSecrets(t *testing.T) {
	for _, text := range []string{
		"-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES-128-CBC,Planted\n\nPlanted-Planted\n-----END RSA PRIVATE KEY-----\nkept1",
		"2026-01-02T03:04:05.6Z -----BEGIN PRIVATE KEY-----\n2026-01-02T03:04:05.7Z Planted\n2026-01-02T03:04:05.7Z Planted",
		"Planted\nPlanted\n-----END PRIVATE KEY-----\nkept1",
		`password: "Planted Planted, \" Planted" kept1`, "password='Planted Planted' kept1", "token=a;Planted,Planted kept1", "secret={Planted [Planted] Planted} kept1",
		"password: Planted, with Planted\nkept1: 1", "kept1\n  - password: |-\n      Planted\n\n      Planted\n    kept2: 1", "secret: >\n  Planted\nkept1: 1", "credentials:\n- Planted\n- Planted\nkept1: 1",
		"2026-01-02T03:04:05.6Z stdout F secret:\n2026-01-02T03:04:05.6Z stdout F   a: Planted\n2026-01-02T03:04:05.6Z stdout F kept1: 1",
		"password=(Planted)", "password=(left out) kept1", `{"token": true, "kept1": 1}`, `{"password":12Planted}`,
		"secretKey=Planted kept1", "secret_key: Planted", "SECRET_KEY=Planted kept1", "passphrase=Planted", "DB_PASS=Planted", "PGPASS=Planted", "dbPass=Planted", "TOKEN_1=Planted", "SECRET_VALUE=Planted",
		"--token-file=/kept1 secretName: kept2 tokenExpirationSeconds: kept3 bypass=kept4 PWD=/kept5 passed: kept6 NCCL_IB_PKEY=kept7 compass: kept8",
		"run --password Planted kept1", "- --api-key\n- Planted\n- kept1", "x --token-lifetime kept1",
		"https://:Planted@kept1/", "https://Planted@kept1/", "https://user:Pl/Planted@Planted@kept1/x", "https://kept1/x?of=a@kept2", "docker://kept1/x@sha256:kept2", "https://kept1:6443/x",
		`{\"password\": \"Planted \\\" Planted\", \"kept1\": 1}`, `{"a": "{\"secret\": {\"b\": \"Planted\"}} kept1"}`,
		`Authorization: Basic Planted kept1`,
		"a://kept1/x,https://user:Planted@kept2/", "'https://kept1/x','https://u:Planted@kept2'", "https://kept1/?u=https://u:Planted@kept2", "https://kept1:80,https://u:Planted@kept2/x,b://kept3/x@kept4,c://:Planted@kept5",
		"https://u:Planted://Planted@kept1/", "https://u:a://b://Planted@kept1/", "https://[::1]:80/kept1,https://u:Planted@kept2",
		"DB_PASSWORD=#Planted\nkept1", "DB_PASSWORD=|Planted\nkept1", "password:#Planted", "password: #Planted\nkept1", "password: |123Planted", "password: # Planted\n  Planted\nkept1: 1",
		`{"args":["--token","Planted","--kept1"]}`, `{"args":["--token","--kept1"]}`, "[\n \"--token\",\n \"Planted\",\n \"kept1\"\n]", `{\"args\":[\"--token\",\"Planted\",\"kept1\"]}`, "[--token,Planted] kept1",
		"{\"password\":\n\"Planted\", \"kept1\": 1}", "{\n \"password\":\n  \"Planted\",\n \"kept1\": 1\n}", "{\"secret\":\r\n{\"a\": \"Planted\"}, \"kept1\": 1}", "\"secret\":\n  \"a\": Planted\n\"kept1\": 1",
		"PASSWORD=[a]Planted kept1", "PASSWORD=[a],Planted kept1", "PASSWORD={a}Planted", "password: [a]Planted, kept1", "PASSWORD='a'Planted kept1", `PASSWORD="a"Planted, kept1`,
		`{"secret": {"a": "}x", "b": "Planted"}, "kept1": 1}`, `{"secret": ["]\"]", 'a]', "Planted"], "kept1": 1}`, `{\"secret\": {\"a\": \"}\\\"}x\", \"b\": \"Planted\"}, \"kept1\": 1}`, "secret={it's Planted} kept1", "secret={'tis Planted} kept1",
	} {
		clean, n := withoutSecrets(text, false)
		if strings.Contains(clean, "Planted") || (n > 0) != strings.Contains(text, "Planted") {
			t.Errorf("%q became %q, %d removed", text, clean, n)
		}
		for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return !strings.ContainsRune("kept12345678", r) }) {
			if strings.HasPrefix(word, "kept") && !strings.Contains(clean, word) {
				t.Errorf("%q became %q, without %s", text, clean, word)
			}
		}
		if again, n := withoutSecrets(clean, false); again != clean || n != 0 {
			t.Errorf("%q became %q again, %d removed", clean, again, n)
		}
	}
	for text, want := range map[string]string{
		"<td>token: &#34;Planted Planted&#34;</td><td>kept</td>":                   "<td>token: (left out)</td><td>kept</td>",
		"<td>{&#34;password&#34;: &#34;Planted Planted&#34;}</td><td>kept</td>":    "<td>{&#34;password&#34;: (left out)</td><td>kept</td>",
		"<td>{&#39;password&#39;:&quot;Planted</td>kept":                           "<td>{&#39;password&#39;:(left out)</td>kept",
		"<td>&#34;password&#34;:\n&#34;Planted&#34;</td>kept":                      "<td>&#34;password&#34;:(left out)</td>kept",
		"<td>&#34;secret&#34;: [&#34;]&#34;, &#34;Planted&#34;]</td>kept":          "<td>&#34;secret&#34;: (left out)</td>kept",
		"<td>[&#34;--token&#34;,&#34;Planted&#34;]</td>kept":                       "<td>[&#34;--token&#34;,(left out)</td>kept",
		"<td>&#34;Authorization&#34;: &#34;Basic Planted&#34;}</td>kept":           "<td>&#34;Authorization&#34;: &#34;Basic (left out)</td>kept",
		"<td>&#34;secretName&#34;: &#34;kept&#34;, &#34;token&#34;: true</td>kept": "<td>&#34;secretName&#34;: &#34;kept&#34;, &#34;token&#34;: true</td>kept",
	} {
		if clean, _ := withoutSecrets(text, true); clean != want {
			t.Errorf("%q became %q", text, clean)
		}
	}
}

func TestValuesAreWithoutSecrets(t *testing.T) {
	for _, text := range []string{
		`{"password": 1234, "kept": 1}`, `{"secret": {"a": "Planted"}}`, `{"tokens": ["Planted", {"kept": 1}]}`, `["--token", "Planted", "--kept"]`, `["-password", "Planted"]`,
		`{"name": "TOKEN_1", "value": "Planted"}`, `{"config": "{\"kept\": 1, \"secret\": {\"a\": \"Planted\"}}"}`, `{"annotations": {"x": "[{\"apiKey\": [\"Planted\"], \"kept\": \"a <b>\"}]"}}`,
		`{"config": "{\"x\": \"password=Planted\", \"x\": \"kept\"}"}`,
	} {
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
		n := 0
		clean, err := json.Marshal(scrub(value, &n))
		if err != nil || n == 0 || strings.Contains(string(clean), "Planted") || strings.Contains(string(clean), "1234") || strings.Contains(text, "kept") && !strings.Contains(text, "tokens") && !strings.Contains(string(clean), "kept") {
			t.Errorf("%s became %s, %d removed, %v", text, clean, n, err)
		}
	}
	const reference = `{"automountServiceAccountToken":true,"env":[{"name":"A","valueFrom":{"secretKeyRef":{"key":"k","name":"n"}}}],"imagePullSecrets":[{"name":"n"}],` +
		`"secret":{"defaultMode":420,"items":[{"key":"k","path":"p"}],"secretName":"n"},"serviceAccountToken":{"expirationSeconds":3600,"path":"token"}}`
	var value any
	if err := json.Unmarshal([]byte(reference), &value); err != nil {
		t.Fatal(err)
	}
	n := 0
	if clean, err := json.Marshal(scrub(value, &n)); err != nil || n != 0 || string(clean) != reference {
		t.Errorf("it became %s, %d removed, %v", clean, n, err)
	}
}
