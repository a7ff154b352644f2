"""Values of the Helm chart: every one that there is, so that each is rendered and accepted."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.chart import LEAST, SECRETS, Object

DIGEST = "sha256:" + "0123456789abcdef" * 4
PEER: Object = {"namespaceSelector": {"matchLabels": {"name": "there"}}}
PROBE: Object = {"exec": {"command": ["true"]}, "periodSeconds": 7}
_PERIOD: Object = {"periodSeconds": 7}
_LOG_LEVEL = ["--log-level", "INFO"]


def _of_every_pod(name: str, *, args: Sequence[str], probes: Object = PROBE) -> Object:
    """Each key that all components have, with a value that Kubernetes accepts, and that no other level has."""
    container = {"image": "registry.example/tool:1", "resources": {"requests": {"cpu": "1m"}}}
    number = sum(name.encode())  # as good as any other
    return {
        "annotations": {f"{name}/a": "1"}, "labels": {f"{name}-l": "1"},
        "podAnnotations": {f"{name}/p": "1"}, "podLabels": {f"{name}-pl": "1"},
        "podAntiAffinityPreset": "hard", "nodeSelector": {f"disk-{name}": "ssd"},
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"topologyKey": name, "labelSelector": {}}}
        ]}},
        "tolerations": [{"key": name, "operator": "Exists"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": name, "whenUnsatisfiable": "ScheduleAnyway"}],
        "priorityClassName": "high", "runtimeClassName": "sandboxed", "schedulerName": f"of-{name.lower()}",
        "automountServiceAccountToken": False,
        "hostAliases": [{"ip": f"192.0.2.{number % 256}", "hostnames": [name.lower()]}],
        "dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.2"], "searches": [f"{name.lower()}.example"]},
        "podSecurityContext": {"runAsUser": 20000 + number, "supplementalGroups": [number]},
        "securityContext": {"privileged": False},
        "terminationGracePeriodSeconds": number,
        **({} if name in ("migrate", "test") else _of_a_deployment(number)),
        "extraArgs": list(args), "extraEnv": [
            {"name": f"{name.upper()}_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        ],
        "extraEnvFrom": [{"secretRef": {"name": f"env-{name.lower()}"}}],
        "extraVolumes": [{"name": f"vol-{name.lower()}", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": f"vol-{name.lower()}", "mountPath": f"/vol/{name}"}],
        "initContainers": [{"name": f"init-{name.lower()}", **container}],
        "sidecars": [{"name": f"side-{name.lower()}", **container}],
        "lifecycle": {"postStart": {"exec": {"command": ["true", name]}}},
        **dict.fromkeys(("startupProbe", "livenessProbe", "readinessProbe"), probes),
    }  # fmt: skip


def _of_a_deployment(number: int) -> Object:
    return {
        "strategy": {"rollingUpdate": {"maxSurge": number}},
        "minReadySeconds": number // 2,
        "revisionHistoryLimit": number,
    }


_HPA: Object = {
    "enabled": True, "minReplicas": 3, "maxReplicas": 30, "cpu": 60, "memory": 70,
    "metrics": [
        {"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}}}
    ],
    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
}  # fmt: skip
_KEDA: Object = {
    "enabled": True, "minReplicas": 0, "maxReplicas": 16, "backlog": 1000000, "pollingInterval": 10,
    "cooldownPeriod": 60, "annotations": {"k": "v"},
}  # fmt: skip
_BUDGET: Object = {"enabled": True, "maxUnavailable": "50%", "unhealthyPodEvictionPolicy": "IfHealthyBudget"}
_AT_LEAST: Object = {"minAvailable": 1}
_NO_BUDGET: Object = {"enabled": False}
_RESOURCES: Object = {"limits": {"memory": "3333Mi"}}
# What is not named after its level, for two levels over others that have it too.
_OTHERWISE: Object = {
    "podAntiAffinityPreset": "none", "priorityClassName": "low", "runtimeClassName": "plain",
    "dnsPolicy": "ClusterFirst", "securityContext": {"procMount": "Default"}, "automountServiceAccountToken": True,
}  # fmt: skip
_DEFAULTS: Object = {**_of_every_pod("every", args=[], probes={"periodSeconds": 9}), **_OTHERWISE}
# Every value, but for those that exclude others.
EVERY: Object = {
    "global": {"imageRegistry": "registry.example", "imagePullSecrets": [{"name": "global"}]},
    "nameOverride": "events", "fullnameOverride": "bw-bucketwire",
    "commonLabels": {"team": "storage"}, "commonAnnotations": {"team": "storage"},
    "image": {"repository": "mirror/bucketwire", "tag": "mine", "digest": DIGEST, "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "settings": {"BUCKETWIRE_PARTITIONS": 32, "MINIO_NOTIFY_WEBHOOK_ENABLE_audit": "on"},
    "secrets": {"BUCKETWIRE_API_TOKENS": SECRETS["BUCKETWIRE_API_TOKENS"]},
    "existingSecret": "more", "restartOnChangedSecrets": True, "targetSecrets": "targets", "openshift": "disabled",
    "secretKeyRefs": {"BUCKETWIRE_DATABASE_URL": {"name": "outbox-app", "key": "uri"}},
    "podDefaults": _DEFAULTS,
    "migrate": {
        **_of_every_pod("migrate", args=["--json"]), "enabled": True, "backoffLimit": 2,
        "resources": {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    },
    "api": {
        **_of_every_pod("api", args=["--threads", "16"], probes=_PERIOD),
        "replicas": 3, "workers": 4, "threads": 16, "readinessPath": "/readyz", "stopDelaySeconds": 2,
        "service": {
            "type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}, "labels": {"c": "d"}, "nodePort": 30080,
            "clusterIP": "10.0.0.77", "loadBalancerClass": "example.com/lb", "loadBalancerIP": "192.0.2.3",
            "loadBalancerSourceRanges": ["192.0.2.0/24"], "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster", "trafficDistribution": "PreferSameZone",
            "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"],
        },
        "tls": {
            "existingSecret": "tls", "certificate": "chain.pem", "key": "key.pem", "authority": "ca.pem",
            "serverName": "events.example.com",
        },
        "spool": {"enabled": True, "size": "20Gi", "storageClass": "ssd"},
        "resources": {"limits": {"memory": "3Gi"}}, "podDisruptionBudget": _BUDGET, "hpa": {"enabled": False},
    },
    "beat": {**_of_every_pod("beat", args=_LOG_LEVEL), "replicas": 2, "resources": _RESOURCES},
    "drain": {
        **_of_every_pod("drain", args=_LOG_LEVEL), "replicas": 3, "resources": _RESOURCES,
        "podDisruptionBudget": _BUDGET,
    },
    "poolDefaults": {
        **_of_every_pod("pools", args=_LOG_LEVEL), "targets": ["kafka", "redis"], "replicas": 3, "concurrency": 8,
        "resources": {"limits": {"cpu": "2"}}, "podDisruptionBudget": _BUDGET, "keda": _KEDA,
    },
    "pools": {
        "all": None, "rest": {},
        "webhooks": {
            **_of_every_pod("webhooks", args=["--name", "x"], probes=PROBE | {"periodSeconds": 8}), **_OTHERWISE,
            "securityContext": {"runAsNonRoot": True},
            "targets": ["webhook:audit", "webhook:x"], "replicas": 0, "concurrency": 1, "resources": _RESOURCES,
            "podDisruptionBudget": _NO_BUDGET, "hpa": _HPA, "keda": {"enabled": False},
        },
    },
    "sources": {
        **_of_every_pod("sources", args=_LOG_LEVEL), "enabled": True, "replicas": 2,
        "resources": _RESOURCES,
    },
    "spark": {
        **_of_every_pod("spark", args=_LOG_LEVEL), "enabled": True,
        "image": {"repository": "mirror/spark", "tag": "mine", "digest": DIGEST, "pullPolicy": "Always"},
        "master": "k8s://https://kubernetes.default.svc", "memory": "2g", "rbac": {"create": True},
        "defaults": {"spark.kubernetes.container.image": "executor:1", "spark.driver.port": "9999"},
        "existingSecret": "buckets", "reports": {"existingClaim": "reports"}, "resources": _RESOURCES,
    },
    "flower": {
        **_of_every_pod("flower", args=["--listen", "0.0.0.0:5555"]), "enabled": True,
        "service": {"port": 80}, "resources": _RESOURCES,
    },
    "test": {**_of_every_pod("test", args=["more"]), "resources": _RESOURCES},
    "ingress": {
        "enabled": True, "className": "nginx", "annotations": {"a": "b"}, "labels": {"c": "d"},
        "hosts": [
            {"host": "events.example.com", "paths": [{"path": "/v1/events", "pathType": "Exact"}]}, {"host": "b.c"},
        ],
        "tls": [{"secretName": "public", "hosts": ["events.example.com"]}],
    },
    "httpRoute": {
        "enabled": True, "annotations": {"a": "b"}, "labels": {"c": "d"}, "hostnames": ["events.example.com"],
        "parentRefs": [{"name": "public", "namespace": "gateways"}],
        "matches": [{"path": {"type": "Exact", "value": "/v1/events"}}],
        "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x"]}}],
    },
    "serviceMonitor": {
        "enabled": True, "interval": "1m", "scrapeTimeout": "20s", "labels": {"release": "prometheus"},
        "annotations": {"a": "b"}, "relabelings": [{"action": "labeldrop", "regex": "pod"}],
        "metricRelabelings": [{"action": "labeldrop", "regex": "host"}],
        "tokenSecret": {"name": "token", "key": "read"},
    },
    "prometheusRule": {
        "enabled": True, "labels": {"release": "prometheus"}, "annotations": {"a": "b"},
        "runbooks": "https://git.example.com/bw/", "disabled": ["BucketwireProcessDown"],
        "groups": [{"name": "own", "rules": [{"alert": "Own", "expr": "vector(1)"}]}],
    },
    "grafanaDashboard": {"enabled": True, "labels": {"grafana_dashboard": "2"}, "annotations": {"folder": "S3"}},
    "networkPolicy": {
        "enabled": True, "api": [PEER], "metrics": [PEER], "flower": [PEER],
        "ingress": [{"ports": [{"port": 9999}]}], "egress": [{"to": [PEER]}],
    },
    "serviceAccount": {"create": True, "name": "own", "annotations": {"a": "b"}, "labels": {"c": "d"}},
    "extraObjects": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}, "data": {"a": "b"}},
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: text}\n",
    ],
}  # fmt: skip
# Those that EVERY excludes, and what has no effect beside it.
OTHERS: Object = {
    **LEAST, "podDefaults": _DEFAULTS,
    "api": {"hpa": _HPA, "podDisruptionBudget": _AT_LEAST, "strategy": {"rollingUpdate": {"maxSurge": 5}}},
    "drain": {"podDisruptionBudget": _AT_LEAST},
    "poolDefaults": {"hpa": _HPA, "podDisruptionBudget": _AT_LEAST},
    "pools": {
        "rest": {},
        "webhooks": {
            "hpa": {"enabled": False}, "keda": _KEDA,
            "podDisruptionBudget": {"minAvailable": 2, "unhealthyPodEvictionPolicy": "IfHealthyBudget"},
        },
    },
    "spark": {"enabled": True, "automountServiceAccountToken": False},
}  # fmt: skip
# What is there unless it is turned off, and what has no effect beside the others.
OFF: Object = {
    **LEAST, "image": {"tag": "mine"}, "openshift": "force", "restartOnChangedSecrets": False,
    "migrate": {"enabled": False}, "api": {"podDisruptionBudget": _NO_BUDGET},
    "drain": {"podDisruptionBudget": _NO_BUDGET},
    "poolDefaults": {"replicas": 5, "podDisruptionBudget": _NO_BUDGET},
    "pools": {"webhooks": {"replicas": 6, "podDisruptionBudget": {"enabled": True, "maxUnavailable": 2}}},
    "spark": {"enabled": True, "image": {"tag": "mine"}},
    "networkPolicy": {"enabled": False}, "serviceAccount": {"create": False},
}  # fmt: skip
