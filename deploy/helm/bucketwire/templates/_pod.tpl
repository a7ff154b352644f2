{{/* Variables of every process: from the chart's ConfigMap and Secret, and from existing Secrets. Called with a dict: root, stored. */}}
{{- define "bucketwire.envFrom" -}}
{{- range .stored }}
- {{ toJson . }}
{{- end }}
{{- with .root.Values.existingSecret }}
- secretRef: {name: {{ . }}}
{{- end }}
{{- end -}}

{{- define "bucketwire.secretEnv" -}}
{{- range $name, $from := .Values.secretKeyRefs }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef: {name: {{ $from.name }}, key: {{ $from.key }}}
{{- end }}
{{- end -}}

{{/* Where pods of a component run: not on the node of another one, by default. Called with a dict: root, name, pod. */}}
{{- define "bucketwire.affinity" -}}
{{- $affinity := deepCopy (default dict .pod.affinity) -}}
{{- if and (not (hasKey $affinity "podAntiAffinity")) (ne .pod.podAntiAffinityPreset "none") -}}
{{- $labels := merge (dict "app.kubernetes.io/component" .name) (include "bucketwire.selector" .root | fromYaml) -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels) -}}
{{- if eq .pod.podAntiAffinityPreset "hard" -}}
{{- $_ := set $affinity "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) -}}
{{- else -}}
{{- $weighted := list (dict "weight" 100 "podAffinityTerm" $term) -}}
{{- $_ := set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $weighted) -}}
{{- end -}}
{{- end -}}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A list of further containers; one without a security context has that of ours. Called with a dict: root, pod, containers. */}}
{{- define "bucketwire.containers" -}}
{{- range .containers }}
{{- $own := ternary .securityContext $.pod.securityContext (hasKey . "securityContext") }}
- {{ toYaml (merge (dict "securityContext" (include "bucketwire.securityContext" (dict "root" $.root "context" $own) | fromYaml)) .) | nindent 2 | trim }}
{{- end }}
{{- end -}}

{{/*
A pod's specification. Called with a dict: root, name (of the component), pod (its values over `podDefaults`); stored (sources of
the chart's variables); either args, or command and args; if need be image, container (its name), env, envFrom, ports, probes, lifecycle,
resources, mounts, volumes, ownData (`volumes` has the data folder), bare (it has neither variables nor folders), token (the account's
is mounted), account, restartPolicy, graceSeconds (in addition).
*/}}
{{- define "bucketwire.pod" -}}
{{- $root := .root -}}
{{- $pod := .pod -}}
{{- $image := default $root.Values.image .image -}}
serviceAccountName: {{ default (include "bucketwire.serviceAccount" $root) .account }}
automountServiceAccountToken: {{ or (default false .token) (default false $pod.automountServiceAccountToken) }}
# Else there were variables such as BUCKETWIRE_PORT, which are no settings.
enableServiceLinks: false
{{- with .restartPolicy }}
restartPolicy: {{ . }}
{{- end }}
terminationGracePeriodSeconds: {{ add (int $pod.terminationGracePeriodSeconds) (int (default 0 .graceSeconds)) }}
{{- with concat $root.Values.global.imagePullSecrets $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "bucketwire.securityContext" (dict "root" $root "context" $pod.podSecurityContext) | nindent 2 }}
{{- include "bucketwire.affinity" . }}
{{- range $key := list "priorityClassName" "runtimeClassName" "schedulerName" "dnsPolicy" }}
{{- with get $pod $key }}
{{ $key }}: {{ . }}
{{- end }}
{{- end }}
{{- with $pod.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- $own := merge (dict "app.kubernetes.io/component" $.name) (include "bucketwire.selector" $root | fromYaml) }}
  {{- range . }}
  - {{ toYaml (merge (dict) . (dict "labelSelector" (dict "matchLabels" $own))) | nindent 4 | trim }}
  {{- end }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "hostAliases" "dnsConfig" }}
{{- with get $pod $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with $pod.initContainers }}
initContainers:
  {{- include "bucketwire.containers" (dict "root" $root "pod" $pod "containers" .) | nindent 2 }}
{{- end }}
containers:
  - name: {{ default "bucketwire" .container }}
    image: {{ include "bucketwire.image" (dict "root" $root "image" $image) }}
    imagePullPolicy: {{ $image.pullPolicy }}
    {{- with .command }}
    command: {{ toJson . }}
    {{- end }}
    args: {{ toJson (concat .args (default list $pod.extraArgs)) }}
    {{- $envFrom := ternary list (include "bucketwire.envFrom" . | fromYamlArray) (default false .bare) }}
    {{- with concat $envFrom (default list .envFrom) (default list $pod.extraEnvFrom) }}
    envFrom:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- $secretEnv := ternary list (include "bucketwire.secretEnv" $root | fromYamlArray) (default false .bare) }}
    {{- with concat $secretEnv (default list .env) (default list $pod.extraEnv) }}
    env:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .ports }}
    ports:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- $probes := default dict .probes }}
    {{- range $key := list "startupProbe" "livenessProbe" "readinessProbe" }}
    {{- $base := default dict (get $probes $key) }}
    {{- $own := default dict (get $pod $key) }}
    {{- if or $own.exec $own.httpGet $own.tcpSocket $own.grpc }}{{- $base = omit $base "httpGet" }}{{- end }}
    {{- $probe := include "bucketwire.overlay" (dict "base" $base "over" $own) | fromJson }}
    {{- if or $probe.exec $probe.httpGet $probe.tcpSocket $probe.grpc }}
    {{ $key }}:
      {{- toYaml $probe | nindent 6 }}
    {{- end }}
    {{- end }}
    {{- with include "bucketwire.overlay" (dict "base" (default dict .lifecycle) "over" (default dict $pod.lifecycle)) | fromJson }}
    lifecycle:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $pod.resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    securityContext:
      {{- include "bucketwire.securityContext" (dict "root" $root "context" $pod.securityContext) | nindent 6 }}
    {{- $mounts := list }}
    {{- $volumes := list }}
    {{- if not .bare }}
    {{- $mounts = list (dict "name" "tmp" "mountPath" "/tmp") (dict "name" "data" "mountPath" "/var/lib/bucketwire/var") }}
    {{- $volumes = list (dict "name" "tmp" "emptyDir" (dict)) }}
    {{- if not .ownData }}{{- $volumes = append $volumes (dict "name" "data" "emptyDir" (dict)) }}{{- end }}
    {{- with $root.Values.targetSecrets }}
    {{- $mounts = append $mounts (dict "name" "target-secrets" "mountPath" "/run/secrets" "readOnly" true) }}
    {{- $volumes = append $volumes (dict "name" "target-secrets" "secret" (dict "secretName" . "defaultMode" 288)) }}
    {{- end }}
    {{- end }}
    {{- with concat $mounts (default list .mounts) (default list $pod.extraVolumeMounts) }}
    volumeMounts:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- with $pod.sidecars }}
  {{- include "bucketwire.containers" (dict "root" $root "pod" $pod "containers" .) | nindent 2 }}
  {{- end }}
{{- with concat $volumes (default list .volumes) (default list $pod.extraVolumes) }}
volumes:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
A process as a Deployment, or as a StatefulSet if it has `claims`. Called with the dict of "bucketwire.pod", but `values` in place of
`pod`; if need be labels (of its pods), autoscaled (another one sets the replicas), claims (templates of volume claims), secrets
(names of Secrets from which it has variables, beside the release's).
*/}}
{{- define "bucketwire.process" -}}
{{- $root := .root -}}
{{- $pod := include "bucketwire.overlay" (dict "base" $root.Values.podDefaults "over" .values) | fromJson -}}
{{- $name := printf "%s-%s" (include "bucketwire.fullname" $root) .name -}}
{{- $stored := list -}}
{{- if $root.Values.settings -}}{{- $stored = append $stored (dict "configMapRef" (dict "name" (include "bucketwire.fullname" $root))) -}}{{- end -}}
{{- if $root.Values.secrets -}}{{- $stored = append $stored (dict "secretRef" (dict "name" (include "bucketwire.fullname" $root))) -}}{{- end -}}
{{- /* Changed variables replace the pods. */ -}}
{{- $checksums := dict "checksum/settings" (list $root.Values.settings $root.Values.secrets | toJson | sha256sum) -}}
{{- if $root.Values.restartOnChangedSecrets -}}
{{- $secrets := concat (list $root.Values.existingSecret) (default list .secrets) -}}
{{- range $root.Values.secretKeyRefs -}}{{- $secrets = append $secrets .name -}}{{- end -}}
{{- $_ := set $checksums "checksum/secrets" (include "bucketwire.secretsChecksum" (dict "root" $root "names" $secrets)) -}}
{{- end -}}
apiVersion: apps/v1
kind: {{ ternary "StatefulSet" "Deployment" (not (empty .claims)) }}
{{ include "bucketwire.metadata" (dict "root" $root "name" $name "component" .name "labels" $pod.labels "annotations" $pod.annotations) }}
spec:
  {{- if not .autoscaled }}
  replicas: {{ int (hasKey .values "replicas" | ternary .values.replicas 1) }}
  {{- end }}
  revisionHistoryLimit: {{ int $pod.revisionHistoryLimit }}
  {{- with $pod.minReadySeconds }}
  minReadySeconds: {{ int . }}
  {{- end }}
  {{- if .claims }}
  serviceName: {{ $name }}
  podManagementPolicy: Parallel
  updateStrategy: {type: RollingUpdate}
  volumeClaimTemplates:
    {{- toYaml .claims | nindent 4 }}
  {{- else }}
  strategy:
    {{- toYaml $pod.strategy | nindent 4 }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "bucketwire.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .name }}
  template:
    metadata:
      labels:
        {{- include "bucketwire.labels" (dict "root" $root "component" .name "labels" (merge (default dict .labels) (default dict $pod.podLabels))) | nindent 8 }}
      annotations:
        {{- toYaml (merge $checksums (default dict $pod.podAnnotations) $root.Values.commonAnnotations) | nindent 8 }}
    spec:
      {{- include "bucketwire.pod" (merge (dict "pod" $pod "stored" $stored) .) | nindent 6 }}
{{- end -}}
