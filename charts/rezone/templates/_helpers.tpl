{{/* The name all objects of the release start with. */}}
{{- define "rezone.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "rezone.operatorName" -}}
{{ include "rezone.fullname" . }}-operator
{{- end -}}

{{/* The labels a selector may use: they never change, or the Deployment could not be upgraded. */}}
{{- define "rezone.selectorLabels" -}}
app.kubernetes.io/name: rezone
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "rezone.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: rezone
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: rezone
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* How operators are spread when the values do not say: apart, where there is room. */}}
{{- define "rezone.spread" -}}
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: ScheduleAnyway
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
{{- end -}}

{{- define "rezone.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "rezone.dataNodeImage" -}}
{{ .Values.dataNodeImage | default (printf "%s-data-node:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion)) }}
{{- end -}}

{{- define "rezone.sparkImage" -}}
{{ .Values.sparkImage | default (printf "%s-spark:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion)) }}
{{- end -}}

{{/* Where certificates come from, as the operator reads it. */}}
{{- define "rezone.tls" -}}
{{- if not .Values.tls.enabled }}off{{ else if eq .Values.tls.issuer "operator" }}issued{{ else }}provided{{ end -}}
{{- end -}}

{{/* The namespaces that get the service accounts of zones, as JSON. */}}
{{- define "rezone.zoneNamespaces" -}}
{{ concat (list .Release.Namespace) .Values.watchNamespaces .Values.zoneNamespaces | uniq | toJson }}
{{- end -}}

{{- /* "on" when clients may log in by requests that the operator signs. */}}
{{- define "rezone.clientLogin" -}}
{{- if and (eq (include "rezone.tls" .) "issued") .Values.tls.clientLogin }}on{{ else }}off{{ end -}}
{{- end }}

{{/*
A CEL expression that is true when v0 has at most so many levels, and each map or list of it at most
4096 values. CEL has no recursion, so each level stands in the one above.
*/}}
{{- define "rezone.shallow" -}}
{{- $last := sub . 1 | int }}
{{- $test := printf "!(type(v%d) == map || type(v%d) == list) || v%d.size() == 0" $last $last $last }}
{{- range $n := untilStep (sub . 2 | int) -1 -1 }}
{{- $v := printf "v%d" $n }}
{{- $small := printf "(!(type(%s) == map || type(%s) == list) || %s.size() <= 4096)" $v $v $v }}
{{- $values := printf "(type(%s) == map ? %s.map(k, %s[k]) : type(%s) == list ? %s : [])" $v $v $v $v $v }}
{{- $test = printf "%s && %s.all(v%d, %s)" $small $values (add $n 1) $test }}
{{- end }}
{{- $test }}
{{- end -}}
