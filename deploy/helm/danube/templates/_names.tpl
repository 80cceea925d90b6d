{{- define "danube.name" -}}
{{ default .Release.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "danube.selector" -}}
app.kubernetes.io/name: danube
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "danube.labels" -}}
{{ include "danube.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "danube.scheme" -}}
{{ .Values.tls.secret | empty | ternary "http" "https" }}
{{- end }}

{{- define "danube.address" -}}
{{ include "danube.scheme" . }}://{{ include "danube.name" . }}.{{ .Release.Namespace }}.svc:6650
{{- end }}

{{- define "danube.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What a value may not be, each as one sentence that names it. The schema beside this only knows types. */}}
{{- define "danube.check" -}}
{{- $brokers := int .Values.brokers }}
{{- if or (lt $brokers 1) (gt $brokers 99) }}
{{- fail (printf "brokers is %d: use 1 to 99" $brokers) }}
{{- end }}
{{- if and (gt $brokers 1) (not (hasPrefix "etcd://" (dig "metadata" "url" "" .Values.settings))) }}
{{- fail (printf "settings.metadata.url names no etcd while brokers is %d: several share one, etcd://HOST:2379/PREFIX" $brokers) }}
{{- end }}
{{- if and (gt $brokers 1) (not (regexMatch "^(s3|gs|az)://" (dig "tier" "url" "" .Values.settings))) }}
{{- fail (printf "settings.tier.url names no object store while brokers is %d: topics move from one to another through it" $brokers) }}
{{- end }}
{{- if not (has .Values.service.type (list "ClusterIP" "NodePort" "LoadBalancer")) }}
{{- fail (printf "service.type is %q: use ClusterIP, NodePort or LoadBalancer" .Values.service.type) }}
{{- end }}
{{- if and (ne .Values.service.type "ClusterIP") .Values.networkPolicy.enabled }}
{{- fail (printf "service.type is %q while networkPolicy.enabled is true: it would let nobody in from outside; switch one of them off, and lock the ports (auth.mode required, tls.secret)" .Values.service.type) }}
{{- end }}
{{- if or (lt (int .Values.graceSeconds) 1) (gt (int .Values.graceSeconds) 600) }}
{{- fail (printf "graceSeconds is %v: use 1 to 600" .Values.graceSeconds) }}
{{- end }}
{{- if not (regexMatch "^[0-9]+(\\.[0-9]+)?(Mi|Gi|Ti)$" .Values.volume.size) }}
{{- fail (printf "volume.size is %q: write it like 20Gi" .Values.volume.size) }}
{{- end }}
{{- if not (has .Values.image.pullPolicy (list "Always" "IfNotPresent" "Never")) }}
{{- fail (printf "image.pullPolicy is %q: use Always, IfNotPresent or Never" .Values.image.pullPolicy) }}
{{- end }}
{{- if and .Values.tls.clientCertificates (not .Values.tls.secret) }}
{{- fail "tls.secret is empty while tls.clientCertificates is true: name the Secret with tls.crt, tls.key and ca.crt" }}
{{- end }}
{{- if not (has .Values.auth.mode (list "off" "optional" "required")) }}
{{- fail (printf "auth.mode is %v: use \"off\" (in quotes), \"optional\" or \"required\"" .Values.auth.mode) }}
{{- end }}
{{- if and (eq (toString .Values.auth.mode) "required") (not .Values.tls.secret) }}
{{- fail "tls.secret is empty while auth.mode is \"required\": tokens are sent over TLS only" }}
{{- end }}
{{- if and (eq (toString .Values.auth.mode) "required") .Values.serviceMonitor.enabled (not .Values.auth.scrapeSecret) }}
{{- fail "auth.scrapeSecret is empty while auth.mode is \"required\" and serviceMonitor.enabled is true: name a Secret with the key token" }}
{{- end }}
{{- if hasKey (default dict .Values.settings.auth) "mode" }}
{{- fail "settings.auth.mode cannot be set: use auth.mode" }}
{{- end }}
{{- range $section, $keys := .Values.settings }}
{{- if has $section (list "server" "data" "tls") }}
{{- fail (printf "settings.%s cannot be set: the chart sets addresses, ports, certificates and the data directory itself" $section) }}
{{- end }}
{{- range $key, $value := $keys }}
{{- if or (kindIs "map" $value) (kindIs "slice" $value) (kindIs "invalid" $value) }}
{{- fail (printf "settings.%s.%s is a %s: use text, a number, true or false" $section $key (kindOf $value)) }}
{{- end }}
{{- end }}
{{- end }}
{{- $url := dig "tier" "url" "" .Values.settings }}
{{- if and (hasPrefix "s3://" $url) (not .Values.secrets) (not (dig "tier" "anonymous" false .Values.settings)) (not (dig "tier" "role" "" .Values.settings)) }}
{{- fail (printf "secrets is empty while settings.tier.url is %q: name a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or set settings.tier.role" $url) }}
{{- end }}
{{- end }}
