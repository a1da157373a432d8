{{- /* The text of all sections, for site.js: page, address, heading, text, and the weight of the section in the menu. */ -}}
{{- $sections := slice -}}
{{- range site.Data.menu }}{{ $weight := default 1 .weight }}{{ range .pages }}{{ with partial "translated.html" (dict "path" .) -}}
  {{- $title := partial "title.html" . -}}
  {{- $url := strings.TrimPrefix "/" (partial "url.html" .) -}}
  {{- $text := .Content | replaceRE `<a class="anchor".*?</a>` "" -}}
  {{- range $i, $part := split ($text | replaceRE `<h[23] id="` "\x00") "\x00" -}}
    {{- $anchor := "" }}{{ $heading := "" }}{{ $body := $part -}}
    {{- if $i -}}
      {{- $anchor = printf "#%s" (index (split $part "\"") 0) -}}
      {{- $body = replaceRE `(?s)^.*?</h[23]>` "" $part -}}
      {{- $heading = replaceRE `(?s)^[^>]*>(.*?)</h[23]>.*$` "$1" $part | plainify | htmlUnescape | replaceRE `^\s+|\s+$` "" -}}
    {{- end -}}
    {{- $body = $body | replaceRE `(?s)<h1.*?</h1>` "" | replaceRE `<` " <" | plainify | htmlUnescape | replaceRE `\s+` " " -}}
    {{- $sections = $sections | append (dict "page" $title "url" (printf "%s%s" $url $anchor) "heading" $heading "text" $body "weight" $weight) -}}
  {{- end -}}
{{- end }}{{ end }}{{ end -}}
searchIndex({{ $sections | jsonify }})
