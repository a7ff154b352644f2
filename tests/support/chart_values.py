"""Values of the Helm chart: every one that there is, so that each is rendered and accepted."""

from __future__ import annotations

from tests.support.chart import LEAST, SECRETS, Object

DIGEST = "sha256:" + "0123456789abcdef" * 4
PEER: Object = {"namespaceSelector": {"matchLabels": {"name": "there"}}}
PROBE: Object = {"exec": {"command": ["true"]}, "periodSeconds": 7}


def _of_every_pod(name: str, *, probes: Object = PROBE) -> Object:
    """Each key that all components have, with a value that Kubernetes accepts; what has a name is named after it."""
    container = {"image": "registry.example/tool:1", "resources": {"requests": {"cpu": "1m"}}}
    return {
        "annotations": {f"{name}/a": "1"}, "labels": {f"{name}-l": "1"},
        "podAnnotations": {f"{name}/p": "1"}, "podLabels": {f"{name}-pl": "1"},
        "podAntiAffinityPreset": "hard", "affinity": {"podAffinity": {}}, "nodeSelector": {"disk": name},
        "tolerations": [{"key": name, "operator": "Exists"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "priorityClassName": "high", "runtimeClassName": "sandboxed", "schedulerName": "ours",
        "hostAliases": [{"ip": "192.0.2.1", "hostnames": [name]}],
        "dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.2"]},
        "podSecurityContext": {"runAsUser": 20002, "supplementalGroups": [3]}, "securityContext": {"privileged": False},
        "terminationGracePeriodSeconds": 50, "strategy": {"rollingUpdate": {"maxSurge": "50%"}},
        "extraArgs": [], "extraEnv": [
            {"name": f"{name.upper()}_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        ],
        "extraEnvFrom": [{"secretRef": {"name": f"env-{name.lower()}"}}],
        "extraVolumes": [{"name": f"vol-{name.lower()}", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": f"vol-{name.lower()}", "mountPath": f"/vol/{name}"}],
        "initContainers": [{"name": f"init-{name.lower()}", **container}],
        "sidecars": [{"name": f"side-{name.lower()}", **container}],
        "lifecycle": {"postStart": {"exec": {"command": ["true"]}}},
        **({} if probes is None else dict.fromkeys(("startupProbe", "livenessProbe", "readinessProbe"), probes)),
    }  # fmt: skip


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
_BUDGET: Object = {"enabled": True, "maxUnavailable": "50%"}
_PERIOD: Object = {"periodSeconds": 7}
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
    "podDefaults": _of_every_pod("every", probes={}),
    "migrate": {
        **_of_every_pod("migrate"), "enabled": True, "backoffLimit": 2,
        "resources": {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    },
    "api": {
        **_of_every_pod("api", probes=_PERIOD),
        "replicas": 3, "workers": 4, "threads": 16, "readinessPath": "/readyz", "stopDelaySeconds": 2,
        "service": {
            "type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}, "labels": {"c": "d"}, "nodePort": 30080,
            "clusterIP": "10.0.0.77", "loadBalancerClass": "example.com/lb", "loadBalancerIP": "192.0.2.3",
            "loadBalancerSourceRanges": ["192.0.2.0/24"], "externalTrafficPolicy": "Local",
            "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"],
        },
        "tls": {
            "existingSecret": "tls", "certificate": "chain.pem", "key": "key.pem", "authority": "ca.pem",
            "serverName": "events.example.com",
        },
        "spool": {"enabled": True, "size": "20Gi", "storageClass": "ssd"},
        "resources": {"limits": {"memory": "3Gi"}}, "podDisruptionBudget": _BUDGET, "hpa": {"enabled": False},
    },
    "beat": {**_of_every_pod("beat"), "replicas": 2, "resources": {}},
    "drain": {
        **_of_every_pod("drain"), "replicas": 3, "resources": {},
        "podDisruptionBudget": _BUDGET,
    },
    "poolDefaults": {
        **_of_every_pod("pools", probes={}), "targets": ["kafka", "redis"], "replicas": 3, "concurrency": 8,
        "resources": {"limits": {"cpu": "2"}}, "podDisruptionBudget": _BUDGET,
        "hpa": _HPA | {"enabled": False}, "keda": _KEDA,
    },
    "pools": {
        "all": None, "rest": {},
        "webhooks": {
            **_of_every_pod("webhooks"),
            "targets": ["webhook:audit", "webhook:x"], "replicas": 0, "concurrency": 1, "resources": {},
            "podDisruptionBudget": {"enabled": False}, "hpa": _HPA, "keda": {"enabled": False},
        },
    },
    "sources": {
        **_of_every_pod("sources"), "enabled": True, "replicas": 2,
        "resources": {},
    },
    "spark": {
        **_of_every_pod("spark"), "enabled": True,
        "image": {"repository": "mirror/spark", "tag": "mine", "digest": DIGEST, "pullPolicy": "Always"},
        "master": "k8s://https://kubernetes.default.svc", "memory": "2g", "rbac": {"create": True},
        "defaults": {"spark.kubernetes.container.image": "executor:1", "spark.driver.port": "9999"},
        "existingSecret": "buckets", "reports": {"existingClaim": "reports"}, "resources": {},
    },
    "flower": {
        **_of_every_pod("flower"), "enabled": True,
        "service": {"port": 80}, "resources": {},
    },
    "test": {**_of_every_pod("test"), "resources": {}},
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
# Those that EVERY excludes.
OTHERS: Object = {**LEAST, "api": {"hpa": _HPA}, "spark": {"enabled": True}, "networkPolicy": {"enabled": False}}
