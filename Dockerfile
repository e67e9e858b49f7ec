# Rezone's images, one target each: operator, data-node, spark (docs/start/install.md, decision 0045).
#
#     docker build --target operator --tag rezone-dev/rezone:0.1.0 .
#     make images                            # all three, with archives of them
#
# Needs BuildKit, and no frontend from a registry. Layers are made of files that all have one date, so
# the same inputs give the same layers. Behind a proxy with a certificate authority of its own: give
# that as the secret "ca", and SSL_CERT_FILE=/run/secrets/ca as build argument.

# Debian 12: security updates for Python 3.11 and Java 17.
ARG BASE=debian:bookworm-slim

# --- Debian with Python ----------------------------------------------------------------------------
FROM ${BASE} AS system
ARG SOURCE_DATE_EPOCH=1735689600
ARG DEBIAN_FRONTEND=noninteractive
# The numbers that the chart gives to the operator's pods, and the operator to data nodes.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 \
 && groupadd --gid 10001 rezone \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin rezone \
 && groupadd --gid 65532 nonroot \
 && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin nonroot

FROM system AS system-root
COPY hack/images/finish-root.sh /
RUN /finish-root.sh /out

# --- Debian with Python and Java -------------------------------------------------------------------
FROM system AS spark-root
# Directories where Spark on Kubernetes expects them; conf is where the driver's settings are mounted.
RUN apt-get install --yes --no-install-recommends openjdk-17-jre-headless p11-kit tini \
 && ln -s /usr/lib/jvm/java-17-openjdk-* /opt/java \
 && ln -s /opt/venv/lib/python3.11/site-packages/rezone /opt/rezone \
 && mkdir -p /opt/spark/conf /opt/spark/work-dir \
 && chown 65532:65532 /opt/spark/work-dir \
 && for part in bin jars python; do \
      ln -s ../venv/lib/python3.11/site-packages/pyspark/$part /opt/spark/$part; \
    done
COPY hack/images/finish-root.sh /
RUN /finish-root.sh /out

# --- Locked dependencies and this project, per image -----------------------------------------------
FROM system AS builder
ARG SSL_CERT_FILE
ARG PIP_CERT=${SSL_CERT_FILE}
ARG PIP_INDEX_URL
ARG UV_DEFAULT_INDEX=${PIP_INDEX_URL}
ARG UV_VERSION=0.13.8
RUN --mount=type=secret,id=ca \
    apt-get install --yes --no-install-recommends python3-venv \
 && python3 -m venv /usr/local/uv \
 && /usr/local/uv/bin/pip install --no-cache-dir --disable-pip-version-check uv==${UV_VERSION}
# Bytecode that is checked against nothing: files do not change, and a read-only root takes no other.
ENV PATH=/usr/local/uv/bin:${PATH} \
    PYC_INVALIDATION_MODE=UNCHECKED_HASH \
    UV_COMPILE_BYTECODE=1 \
    UV_FROZEN=1 \
    UV_LINK_MODE=copy \
    UV_NO_DEV=1 \
    UV_NO_EDITABLE=1 \
    UV_PROJECT_ENVIRONMENT=/opt/venv \
    UV_PYTHON=/usr/bin/python3
WORKDIR /src
COPY pyproject.toml uv.lock README.md LICENSE hack/images/finish-venv.sh ./

FROM builder AS operator-venv
RUN --mount=type=secret,id=ca uv sync --extra operator --extra console --extra tracing --no-install-project
COPY operator operator
RUN --mount=type=secret,id=ca uv sync --extra operator --extra console --extra tracing && ./finish-venv.sh /opt/venv /out

FROM builder AS data-node-venv
RUN --mount=type=secret,id=ca uv sync --extra data-node --extra tracing --no-install-project
# Limits of what Flight's server receives (decision 503), by headers that go with the rest of C.
COPY operator/native operator/native
RUN --mount=type=secret,id=ca apt-get install --yes --no-install-recommends g++ \
 && operator/native/build.sh /opt/venv/bin/python
COPY operator operator
RUN --mount=type=secret,id=ca uv sync --extra data-node --extra tracing && ./finish-venv.sh /opt/venv /out

FROM builder AS spark-venv
RUN --mount=type=secret,id=ca uv sync --extra spark --extra iceberg --no-install-project
COPY operator operator
RUN --mount=type=secret,id=ca uv sync --extra spark --extra iceberg && ./finish-venv.sh /opt/venv /out

# --- The images ------------------------------------------------------------------------------------
FROM scratch AS runtime
COPY --from=system-root /out /
ENV PATH=/opt/venv/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title="Rezone" \
      org.opencontainers.image.description="Partitioned, replicated tables on Kubernetes that are moved while they are in use" \
      org.opencontainers.image.licenses="Apache-2.0"
WORKDIR /tmp
ENTRYPOINT ["rezone"]

FROM runtime AS data-node
LABEL org.opencontainers.image.title="Rezone data node"
COPY --from=data-node-venv /out /
USER 65532:65532
CMD ["data-node", "--help"]

FROM scratch AS spark
COPY --from=spark-root /out /
ENV JAVA_HOME=/opt/java \
    PATH=/opt/venv/bin:/opt/spark/bin:/usr/bin:/bin \
    PYSPARK_PYTHON=/opt/venv/bin/python \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SPARK_HOME=/opt/spark
LABEL org.opencontainers.image.title="Rezone Spark jobs" \
      org.opencontainers.image.description="Spark with Rezone's copy jobs and its data source" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=spark-venv /out /
WORKDIR /opt/spark/work-dir
USER 65532:65532
# Executors start Python workers, whose ends somebody must collect.
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "python", "-m", "rezone.transfer.entrypoint"]

# The last one is what a build without --target makes.
FROM runtime AS operator
LABEL org.opencontainers.image.title="Rezone operator"
COPY --from=operator-venv /out /
USER 10001:10001
CMD ["--help"]
