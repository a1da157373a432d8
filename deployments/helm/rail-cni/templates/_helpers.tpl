{{- define "rail-cni.labels" -}}
app.kubernetes.io/name: rail-cni
{{- end }}
{{- define "rail-cni.image" -}}
image: {{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}
{{- define "rail-cni.restricted" -}}
runAsNonRoot: true
runAsUser: 65534
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- /* Earlier releases had true and false. "off" without quotes is false in YAML. */}}
{{- define "rail-cni.reconcile" -}}
{{- get (dict "true" "deployment" "false" "off") (toString .Values.reconcile) | default .Values.reconcile }}
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
{{- /* An account that may patch a privileged DaemonSet must not outlive its Job. */}}
{{- define "rail-cni.hookRights" -}}
"helm.sh/hook": pre-delete
"helm.sh/hook-delete-policy": before-hook-creation,hook-succeeded,hook-failed
"helm.sh/hook-weight": "-1"
{{- end }}
