{{/*
Values with others laid over them, as JSON: maps key by key, null removes a key, and these lists come after those of `base`.
Called with a dict: base, over.
*/}}
{{- define "bucketwire.overlay" -}}
{{- $added := list "extraArgs" "extraEnv" "extraEnvFrom" "extraVolumes" "extraVolumeMounts" "hostAliases" "initContainers" "sidecars" -}}
{{- $whole := deepCopy .base -}}
{{- range $key, $value := .over -}}
{{- $below := get $whole $key -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $whole $key -}}
{{- else if and (kindIs "map" $value) (kindIs "map" $below) -}}
{{- $_ := set $whole $key (include "bucketwire.overlay" (dict "base" $below "over" $value) | fromJson) -}}
{{- else if and (kindIs "slice" $value) (kindIs "slice" $below) (has $key $added) -}}
{{- $_ := set $whole $key (concat $below $value) -}}
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
{{- if and $pool.hpa.enabled $pool.keda.enabled -}}
{{- fail (printf "pools.%s has hpa and keda: only one of them can set the number of its pods" $name) -}}
{{- end -}}
{{- $_ := set $pools $name $pool -}}
{{- end -}}
{{- end -}}
{{ toJson $pools }}
{{- end -}}

{{/* The user and the groups are left out of a security context on OpenShift. Called with a dict: root, context. */}}
{{- define "bucketwire.securityContext" -}}
{{- $context := deepCopy (default dict .context) -}}
{{- $found := .root.Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- if or (eq .root.Values.openshift "force") (and (eq .root.Values.openshift "auto") $found) -}}
{{- $context = omit $context "runAsUser" "runAsGroup" "fsGroup" -}}
{{- end -}}
{{ toYaml $context }}
{{- end -}}

{{/* Changes with the variables that a process has from Secrets that the chart does not make. Called with a dict: root, names. */}}
{{- define "bucketwire.secretsChecksum" -}}
{{- $found := dict -}}
{{- range .names | uniq | compact -}}
{{- $secret := lookup "v1" "Secret" $.root.Release.Namespace . -}}
{{- with $secret }}{{- $_ := set $found .metadata.name .data }}{{- end -}}
{{- end -}}
{{ toJson $found | sha256sum }}
{{- end -}}
