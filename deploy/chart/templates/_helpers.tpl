{{- define "paceline.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "paceline.labels" -}}
app.kubernetes.io/name: paceline
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "paceline.metadata" -}}
name: {{ .name }}
labels:
  {{- include "paceline.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "paceline.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "paceline.name" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{/* The image of a process: slim unless it runs Spark. */}}
{{- define "paceline.image" -}}
{{- $image := .root.Values.image -}}
{{- if and .slim .root.Values.slimImage.repository }}{{ $image = .root.Values.slimImage }}{{ end -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "paceline.pullPolicy" -}}
{{- if and .slim .root.Values.slimImage.repository }}{{ .root.Values.slimImage.pullPolicy }}{{ else }}{{ .root.Values.image.pullPolicy }}{{ end -}}
{{- end }}

{{/* The restricted Pod Security Standard. */}}
{{- define "paceline.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "paceline.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "paceline.environment" -}}
{{- if and (eq .component "scheduler") (eq .root.Values.dags.source "git") }}
{{- $git := .root.Values.dags.git }}
- name: PACELINE_BUNDLES_SOURCES
  value: {{ printf "%s=git+%s#ref=%s&folder=%s%s" $git.bundle (required "dags.git.repository is required with dags.source=git" $git.repository) $git.ref (trimSuffix "/" $git.subPath) (include "paceline.gitKey" $git) | quote }}
- name: PACELINE_BUNDLES_POLL_INTERVAL
  value: {{ $git.periodSeconds | quote }}
{{- end }}
{{- if .root.Values.metrics.enabled }}
- name: PACELINE_METRICS_PROMETHEUS
  value: "true"
{{- end }}
{{- with .env }}
{{ toYaml . }}
{{- end }}
{{- with .root.Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "paceline.mounts" -}}
- name: home
  mountPath: /var/lib/paceline
- name: tmp
  mountPath: /tmp
- name: config
  mountPath: /opt/paceline/config
  readOnly: true
{{- if .root.Values.persistence.data.enabled }}
- name: data
  mountPath: /var/lib/paceline/data
{{- end }}
{{- if .root.Values.persistence.logs.enabled }}
- name: logs
  mountPath: /var/lib/paceline/logs
  {{- if eq .component "web" }}
  readOnly: true
  {{- end }}
{{- end }}
{{- if eq .root.Values.dags.source "claim" }}
- name: dags
  mountPath: /opt/paceline/dags
  readOnly: true
{{- else if and (eq .component "scheduler") (eq .root.Values.dags.source "git") .root.Values.dags.git.secret }}
- name: git
  mountPath: /etc/paceline/git
  readOnly: true
{{- end }}
{{- end }}

{{- define "paceline.volumes" -}}
- name: home
  emptyDir: {}
- name: tmp
  emptyDir: {}
- name: config
  configMap:
    name: {{ include "paceline.name" .root }}-config
{{- range $name := list "data" "logs" }}
{{- $volume := index $.root.Values.persistence $name }}
{{- if $volume.enabled }}
- name: {{ $name }}
  persistentVolumeClaim:
    claimName: {{ $volume.claim | default (printf "%s-%s" (include "paceline.name" $.root) $name) }}
{{- end }}
{{- end }}
{{- if eq .root.Values.dags.source "claim" }}
- name: dags
  persistentVolumeClaim:
    claimName: {{ required "dags.claim is required with dags.source=claim" .root.Values.dags.claim }}
    readOnly: true
{{- else if and (eq .component "scheduler") (eq .root.Values.dags.source "git") .root.Values.dags.git.secret }}
- name: git
  secret:
    secretName: {{ .root.Values.dags.git.secret }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{/* The options of a Git source that name the files of its Secret. */}}
{{- define "paceline.gitKey" -}}
{{- if .secret }}&key=/etc/paceline/git/key{{ if hasPrefix "ssh://" .repository }}&known_hosts=/etc/paceline/git/known_hosts{{ end }}{{ end }}
{{- end }}

{{/* The Deployment of a role. `port` answers `alive` and `ready`, the paths of its probes. */}}
{{- define "paceline.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "paceline.metadata" . | nindent 2 }}
spec:
  {{- if not .autoscaled }}
  replicas: {{ .replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "paceline.labels" . | nindent 6 }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
  template:
    metadata:
      labels:
        {{- include "paceline.labels" . | nindent 8 }}
        {{- with .labels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        paceline/config: {{ .root.Values.config | sha256sum | trunc 16 | quote }}
        {{- if and .root.Values.metrics.enabled (eq .portName "health") }}
        prometheus.io/scrape: "true"
        prometheus.io/port: {{ .port | quote }}
        prometheus.io/path: /metrics
        {{- end }}
        {{- with .values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "paceline.pod" . | nindent 6 }}
{{- end }}

{{- define "paceline.pod" -}}
serviceAccountName: {{ include "paceline.serviceAccount" .root }}
automountServiceAccountToken: false
# Service links would set variables such as PACELINE_WEB_PORT, which are settings of Paceline.
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .restartPolicy }}
restartPolicy: {{ .restartPolicy }}
{{- end }}
terminationGracePeriodSeconds: {{ .grace }}
securityContext:
  {{- include "paceline.podSecurity" .root | nindent 2 }}
{{- if .waitsForSchema }}
initContainers:
  - name: wait-for-schema
    image: {{ include "paceline.image" . }}
    imagePullPolicy: {{ include "paceline.pullPolicy" . }}
    args: [paceline, db, check, --wait, "3600"]
    envFrom:
      - secretRef:
          name: {{ .secret }}
    {{- with include "paceline.schemaEnvironment" . | trim }}
    env:
      {{- . | nindent 6 }}
    {{- end }}
    securityContext:
      {{- include "paceline.security" .root | nindent 6 }}
    resources:
      {{- toYaml .root.Values.migrate.resources | nindent 6 }}
    volumeMounts:
      - name: home
        mountPath: /var/lib/paceline
      - name: tmp
        mountPath: /tmp
      - name: config
        mountPath: /opt/paceline/config
        readOnly: true
{{- end }}
containers:
  - name: {{ .container }}
    image: {{ include "paceline.image" . }}
    imagePullPolicy: {{ include "paceline.pullPolicy" . }}
    args:
      {{- toYaml .args | nindent 6 }}
    envFrom:
      - secretRef:
          name: {{ .secret }}
    {{- with include "paceline.environment" . | trim }}
    env:
      {{- . | nindent 6 }}
    {{- end }}
    {{- if .port }}
    ports:
      - name: {{ .portName }}
        containerPort: {{ .port }}
        protocol: TCP
    # Until the database answers. Then alive fails only if a part of the process hangs, so that a restart helps.
    startupProbe:
      httpGet: {path: {{ .alive }}, port: {{ .portName }}}
      periodSeconds: 5
      timeoutSeconds: 5
      failureThreshold: 120
    livenessProbe:
      httpGet: {path: {{ .alive }}, port: {{ .portName }}}
      periodSeconds: 15
      timeoutSeconds: 5
      failureThreshold: 8
    readinessProbe:
      httpGet: {path: {{ .ready }}, port: {{ .portName }}}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 3
    {{- end }}
    securityContext:
      {{- include "paceline.security" .root | nindent 6 }}
    resources:
      {{- toYaml .values.resources | nindent 6 }}
    volumeMounts:
      {{- include "paceline.mounts" . | nindent 6 }}
volumes:
  {{- include "paceline.volumes" . | nindent 2 }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .values.affinity }}
affinity:
  {{- toYaml .values.affinity | nindent 2 }}
{{- else if .spread }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "paceline.labels" . | nindent 8 }}
{{- end }}
{{- end }}

{{/* `paceline db check` reads PACELINE_DATABASE_URL. Workers and web processes have a URL of their own instead. */}}
{{- define "paceline.schemaEnvironment" -}}
{{- with .urlKey }}
- name: PACELINE_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ $.secret }}
      key: {{ . }}
{{- end }}
{{- end }}
