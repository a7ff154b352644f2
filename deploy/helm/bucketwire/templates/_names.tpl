{{- define "bucketwire.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{ (contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name)) | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{/* What selects all pods of the release. */}}
{{- define "bucketwire.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The labels of an object, or of a pod. Called with a dict: root, component, and own ones in `labels`. */}}
{{- define "bucketwire.labels" -}}
{{- $common := dict
  "app.kubernetes.io/version" (toString .root.Chart.AppVersion)
  "app.kubernetes.io/managed-by" .root.Release.Service
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") -}}
{{- $labels := merge (include "bucketwire.selector" .root | fromYaml) (default dict .labels) .root.Values.commonLabels $common -}}
{{- with .component }}{{- $_ := set $labels "app.kubernetes.io/component" . }}{{- end -}}
{{ toYaml $labels }}
{{- end -}}

{{/* The metadata of an object. Called with a dict: root, name, and if need be component, labels, annotations. */}}
{{- define "bucketwire.metadata" -}}
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "bucketwire.labels" . | nindent 4 }}
  {{- with merge (dict) (default dict .annotations) .root.Values.commonAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "bucketwire.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "bucketwire.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* The reference of an image. Called with a dict: root, image. */}}
{{- define "bucketwire.image" -}}
{{- $repository := .image.repository -}}
{{- with .root.Values.global.imageRegistry -}}{{- $repository = printf "%s/%s" . $repository -}}{{- end -}}
{{- if .image.digest -}}
{{ printf "%s@%s" $repository .image.digest | quote }}
{{- else -}}
{{ printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) | quote }}
{{- end -}}
{{- end -}}

{{/* Where pods reach the API: host, scheme, URL. */}}
{{- define "bucketwire.apiHost" -}}
{{ default (printf "%s-api.%s.svc" (include "bucketwire.fullname" .) .Release.Namespace) (and .Values.api.tls.existingSecret .Values.api.tls.serverName) }}
{{- end -}}

{{- define "bucketwire.apiScheme" -}}
{{ ternary "https" "http" (not (empty .Values.api.tls.existingSecret)) }}
{{- end -}}

{{- define "bucketwire.apiUrl" -}}
{{ printf "%s://%s:%d" (include "bucketwire.apiScheme" .) (include "bucketwire.apiHost" .) (int .Values.api.service.port) }}
{{- end -}}

{{/* The file of the authority that has signed the API's certificate; empty if pods trust the public ones, or HTTP. */}}
{{- define "bucketwire.apiAuthority" -}}
{{- with .Values.api.tls -}}
{{- if and .existingSecret .authority -}}/etc/bucketwire/api-authority/ca.crt{{- end -}}
{{- end -}}
{{- end -}}

{{/* A volume with some keys of the API's Secret. Called with a dict: root, name, items (key to file). */}}
{{- define "bucketwire.apiSecretVolume" -}}
name: {{ .name }}
secret:
  secretName: {{ .root.Values.api.tls.existingSecret }}
  defaultMode: 0440
  items:
    {{- range $key, $path := .items }}
    - {key: {{ $key }}, path: {{ $path }}}
    {{- end }}
{{- end -}}

{{- define "bucketwire.apiAuthorityVolume" -}}
{{ include "bucketwire.apiSecretVolume" (dict "root" . "name" "api-authority" "items" (dict .Values.api.tls.authority "ca.crt")) }}
{{- end -}}
