{{- define "rail-cni.labels" -}}
app.kubernetes.io/name: rail-cni
{{- end }}
{{- define "rail-cni.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}
{{- define "rail-cni.pullSecrets" -}}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- define "rail-cni.hook" -}}
"helm.sh/hook": pre-delete
"helm.sh/hook-delete-policy": before-hook-creation,hook-succeeded
{{- end }}
