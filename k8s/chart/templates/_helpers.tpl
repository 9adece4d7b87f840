{{- define "jellybean.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "jellybean.account" -}}
{{- default (include "jellybean.name" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "jellybean.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "jellybean.selector" -}}
app.kubernetes.io/name: jellybean-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "jellybean.labels" -}}
{{ include "jellybean.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: jellybean
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}
