{{- /* The beginning of the objects' names. */}}
{{- define "rail-cni.fullname" -}}
{{- .Values.fullnameOverride | default .Values.nameOverride | default "rail-cni" | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- /* Labels by which pods are selected. They never change. railctl finds the agents by the first label. */}}
{{- define "rail-cni.selector" -}}
app.kubernetes.io/name: rail-cni
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "rail-cni.labels" -}}
{{ include "rail-cni.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | replace "+" "_" | trunc 63 | quote }}
app.kubernetes.io/part-of: rail-cni
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- /* Pods have no label that changes with the version, because a new chart with the same image would otherwise restart them. */}}
{{- define "rail-cni.podLabels" -}}
{{ include "rail-cni.selector" . }}
app.kubernetes.io/part-of: rail-cni
{{- with mergeOverwrite (dict) .Values.commonLabels .Values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- /* Arguments of rail-agent for its log. There are none for the default values. */}}
{{- define "rail-cni.logArgs" -}}
{{- $args := list }}
{{- if ne .Values.log.level "info" }}{{ $args = append $args (printf "- --log-level=%s" .Values.log.level) }}{{ end }}
{{- if ne .Values.log.format "text" }}{{ $args = append $args (printf "- --log-format=%s" .Values.log.format) }}{{ end }}
{{- join "\n" $args }}
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
{{- /* Earlier releases had the values true and false. Also, "off" without quotes is false in YAML. */}}
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
{{- /* When rail-cni is removed, all nodes of the cluster may be cordoned. */}}
{{- define "rail-cni.hookTolerations" -}}
- {key: node.kubernetes.io/unschedulable, operator: Exists, effect: NoSchedule}
{{- with .Values.reconciler.tolerations }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- /* An account that may patch a privileged DaemonSet must not outlive its Job. */}}
{{- define "rail-cni.hookRights" -}}
"helm.sh/hook": pre-delete
"helm.sh/hook-delete-policy": before-hook-creation,hook-succeeded,hook-failed
"helm.sh/hook-weight": "-1"
{{- end }}
{{- /* The name of the DaemonSet of a node pool. */}}
{{- define "rail-cni.agent" -}}
{{- $name := include "rail-cni.fullname" (index . 0) }}
{{- ternary "rail-agent" (printf "%s-agent" $name) (eq $name "rail-cni") }}{{ with (index . 1).name }}-{{ . }}{{ end }}
{{- end }}
{{- /* The names of all DaemonSets, as a list in JSON. */}}
{{- define "rail-cni.agents" -}}
{{- $names := list }}
{{- range .Values.nodePools | default (list dict) }}{{ $names = append $names (include "rail-cni.agent" (list $ .)) }}{{ end }}
{{- toJson $names }}
{{- end }}
{{- /* The node file of a node pool, as JSON: the pool's nodeFile or else the value nodeFile, with the path of sharedConfigMap. */}}
{{- define "rail-cni.nodeFile" -}}
{{- $root := index . 0 }}
{{- $pool := index . 1 }}
{{- $device := $root.Values.devicePlugin }}
{{- $file := deepCopy (ternary $pool.nodeFile $root.Values.nodeFile (hasKey $pool "nodeFile") | default dict) }}
{{- if and $file.resources (not $device.enabled) }}
{{- fail "resources of a node file need devicePlugin.enabled: true" }}
{{- end }}
{{- if and $device.enabled $device.sharedConfigMap }}
{{- $file = mergeOverwrite $file (dict "resources" (dict "sharedConfigFile" "/rdma-devices/config.json")) }}
{{- end }}
{{- toJson $file }}
{{- end }}

{{- /* Whether the API server gets the admission policies: "true", or empty. Kubernetes 1.30 has such policies, but does not bind tokens to Nodes. */}}
{{- define "rail-cni.policies" -}}
{{- $has := and (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1") (semverCompare ">=1.31.0-0" .Capabilities.KubeVersion.Version) }}
{{- if or (eq (toString .Values.admissionPolicy) "true") (and (eq (toString .Values.admissionPolicy) "auto") $has) }}true{{- end }}
{{- end }}

{{- /* Whether there is a policy for node slices: "true", or empty. Without the kind NodeSlicePool, this policy would refuse each request of the plugin. */}}
{{- define "rail-cni.slicePolicy" -}}
{{- if or (eq (toString .Values.admissionPolicy) "true") (.Capabilities.APIVersions.Has "whereabouts.cni.cncf.io/v1alpha1/NodeSlicePool") }}true{{- end }}
{{- end }}

{{/* Whether agents write the annotation rail-cni.io/rails: "true", or empty. */}}
{{- define "rail-cni.annotatesPods" -}}
{{- $files := list .Values.nodeFile }}
{{- range .Values.nodePools }}{{- $files = append $files (.nodeFile | default dict) }}{{- end }}
{{- $on := .Values.annotatePods }}
{{- range $files }}{{- if dig "publish" "annotation" false . }}{{- $on = true }}{{- end }}{{- end }}
{{- if $on }}true{{- end }}
{{- end }}

{{- /* The address of the metrics, in the form that net.Listen needs. */}}
{{- define "rail-cni.metricsAddress" -}}
{{ printf "%s:%d" (ternary (printf "[%s]" .Values.metrics.address) .Values.metrics.address (contains ":" .Values.metrics.address)) (int .Values.metrics.port) }}
{{- end }}

{{- /* Whether only the node itself reaches the metrics: "true", or empty. */}}
{{- define "rail-cni.metricsOnLoopback" -}}
{{- if or (hasPrefix "127." .Values.metrics.address) (has .Values.metrics.address (list "::1" "localhost")) }}true{{- end }}
{{- end }}
