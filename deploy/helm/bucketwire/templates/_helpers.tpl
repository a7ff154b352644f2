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

{{- define "bucketwire.labels" -}}
{{ include "bucketwire.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "bucketwire.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "bucketwire.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* Variables of every process: from the chart's ConfigMap and Secret, and from an existing Secret. */}}
{{- define "bucketwire.envFrom" -}}
{{- $name := include "bucketwire.fullname" . -}}
{{- if .Values.settings }}
- configMapRef: {name: {{ $name }}}
{{- end }}
{{- if .Values.secrets }}
- secretRef: {name: {{ $name }}}
{{- end }}
{{- with .Values.existingSecret }}
- secretRef: {name: {{ . }}}
{{- end }}
{{- end -}}

{{- define "bucketwire.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "bucketwire.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Where pods reach the API: host, scheme, URL. */}}
{{- define "bucketwire.apiHost" -}}
{{ default (printf "%s-api.%s.svc" (include "bucketwire.fullname" .) .Release.Namespace) (and .Values.api.tls.existingSecret .Values.api.tls.serverName) }}
{{- end -}}

{{- define "bucketwire.apiScheme" -}}
{{ ternary "https" "http" (not (empty .Values.api.tls.existingSecret)) }}
{{- end -}}

{{- define "bucketwire.apiUrl" -}}
{{ printf "%s://%s:%v" (include "bucketwire.apiScheme" .) (include "bucketwire.apiHost" .) .Values.api.service.port }}
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

{{/* Values with others laid over them, key by key, as JSON; null removes a key. Called with a dict: base, over. */}}
{{- define "bucketwire.overlay" -}}
{{- $whole := deepCopy .base -}}
{{- range $key, $value := .over -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $whole $key -}}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $whole $key)) -}}
{{- $_ := set $whole $key (include "bucketwire.overlay" (dict "base" (get $whole $key) "over" $value) | fromJson) -}}
{{- else -}}
{{- $_ := set $whole $key $value -}}
{{- end -}}
{{- end -}}
{{ toJson $whole }}
{{- end -}}

{{/* The pools by name, as JSON, each with all that it has. */}}
{{- define "bucketwire.pools" -}}
{{- $pools := dict -}}
{{- range $name, $own := .Values.pools -}}
{{- if not (kindIs "invalid" $own) -}}
{{- $pool := include "bucketwire.overlay" (dict "base" $.Values.poolDefaults "over" $own) | fromJson -}}
{{- $processes := int $pool.concurrency -}}
{{- $requests := dict "cpu" (printf "%dm" (add 50 (mul 50 $processes))) "memory" (printf "%dMi" (add 128 (mul 64 $processes))) -}}
{{- $least := dict "requests" $requests "limits" (dict "memory" (printf "%dMi" (mul 256 $processes))) -}}
{{- $_ := set $pool "resources" (include "bucketwire.overlay" (dict "base" $least "over" $pool.resources) | fromJson) -}}
{{- $_ := set $pools $name $pool -}}
{{- end -}}
{{- end -}}
{{ toJson $pools }}
{{- end -}}

{{/* A worker's or beat's answers to probes, as YAML: env, ports, probes. */}}
{{- define "bucketwire.probed" -}}
env: {name: BUCKETWIRE_PROBE_LISTEN, value: "0.0.0.0:9101"}
port: {name: probe, containerPort: 9101}
probes:
  readinessProbe: {httpGet: {path: /readyz, port: probe}, periodSeconds: 5, timeoutSeconds: 5}
{{- end -}}

{{/* The part of the backlog query that selects a pool's targets; the schema admits no quotes in their names. */}}
{{- define "bucketwire.served" -}}
{{- $terms := list -}}
{{- range .targets -}}
{{- $parts := splitList ":" . -}}
{{- $term := printf "t.type = '%s'" (first $parts) -}}
{{- if gt (len $parts) 1 -}}{{- $term = printf "%s AND t.name = '%s'" $term (last $parts) -}}{{- end -}}
{{- $terms = append $terms (printf "(%s)" $term) -}}
{{- end -}}
{{- if $terms }} AND ({{ join " OR " $terms }}){{- end -}}
{{- end -}}

{{/*
A process as a Deployment, or as a StatefulSet if it has `claims`. Called with a dict: root, name, args, values (replicas,
resources); if need be image, env,
envFrom, labels, ports, probes, lifecycle, volumes, mounts, autoscaled (KEDA sets the replicas), ownData (`volumes` has the data
folder), claims (templates of volume claims), token (the account's is mounted), stopDelay (seconds in which `lifecycle` delays the end).
*/}}
{{- define "bucketwire.process" -}}
{{- $root := .root -}}
{{- $image := default $root.Values.image .image -}}
apiVersion: apps/v1
kind: {{ ternary "StatefulSet" "Deployment" (not (empty .claims)) }}
metadata:
  name: {{ include "bucketwire.fullname" $root }}-{{ .name }}
  labels:
    {{- include "bucketwire.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .name }}
spec:
  {{- if not .autoscaled }}
  replicas: {{ int (hasKey .values "replicas" | ternary .values.replicas 1) }}
  {{- end }}
  revisionHistoryLimit: 3
  {{- if .claims }}
  serviceName: {{ include "bucketwire.fullname" $root }}-{{ .name }}
  podManagementPolicy: Parallel
  updateStrategy: {type: RollingUpdate}
  volumeClaimTemplates:
    {{- toYaml .claims | nindent 4 }}
  {{- else }}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  {{- end }}
  selector:
    matchLabels:
      {{- include "bucketwire.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .name }}
  template:
    metadata:
      labels:
        {{- include "bucketwire.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .name }}
        {{- with .labels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- with $root.Values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        # Changed settings replace the pods.
        checksum/settings: {{ list $root.Values.settings $root.Values.secrets | toJson | sha256sum | quote }}
        {{- with $root.Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "bucketwire.serviceAccount" $root }}
      automountServiceAccountToken: {{ default false .token }}
      # Else there were variables such as BUCKETWIRE_PORT, which are no settings.
      enableServiceLinks: false
      # The API answers what it has begun, a worker finishes its batch.
      terminationGracePeriodSeconds: {{ add 45 (default 0 .stopDelay) }}
      securityContext:
        {{- include "bucketwire.podSecurityContext" $root | nindent 8 }}
      {{- include "bucketwire.placement" $root | nindent 6 }}
      containers:
        - name: bucketwire
          image: {{ include "bucketwire.image" (dict "root" $root "image" $image) }}
          imagePullPolicy: {{ $image.pullPolicy }}
          args: {{ toJson .args }}
          envFrom:
            {{- include "bucketwire.envFrom" $root | trim | nindent 12 }}
            {{- with .envFrom }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- with .env }}
          env:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with .ports }}
          ports:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with .probes }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
          {{- with .lifecycle }}
          lifecycle:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with .values.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          securityContext:
            {{- include "bucketwire.securityContext" $root | nindent 12 }}
          volumeMounts:
            {{- include "bucketwire.mounts" $root | nindent 12 }}
            {{- with .mounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        {{- include "bucketwire.volumes" $root | nindent 8 }}
        {{- if not .ownData }}
        - {name: data, emptyDir: {}}
        {{- end }}
        {{- with .volumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end -}}

{{- define "bucketwire.image" -}}
{{ printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) | quote }}
{{- end -}}

{{- define "bucketwire.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "bucketwire.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: data, mountPath: /var/lib/bucketwire/var}
{{- if .Values.targetSecrets }}
- {name: target-secrets, mountPath: /run/secrets, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "bucketwire.volumes" -}}
- {name: tmp, emptyDir: {}}
{{- with .Values.targetSecrets }}
- name: target-secrets
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
