# A node in a container. Build with `docker build -t cellstore .`; see README.md to run it.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
WORKDIR /src
COPY requirements.txt requirements-dev.txt ./
RUN python3 -m venv /opt/cellstore \
    && /opt/cellstore/bin/python -m pip install --no-cache-dir --no-deps --require-hashes -r requirements.txt
COPY pyproject.toml README.md ./
COPY cellstore cellstore
RUN python3 -m venv /tmp/build \
    && /tmp/build/bin/python -m pip install --no-cache-dir --no-deps --require-hashes -r requirements-dev.txt \
    && /tmp/build/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /tmp/wheel . \
    && /opt/cellstore/bin/python -m pip install --no-cache-dir --no-deps /tmp/wheel/*.whl \
    && /opt/cellstore/bin/python -m pip uninstall --yes pip

FROM ${BASE_IMAGE}
RUN groupadd --system --gid 10001 cellstore \
    && useradd --system --uid 10001 --gid cellstore --no-create-home cellstore \
    && install -d -o cellstore -g cellstore -m 0700 /data
COPY --from=build /opt/cellstore /opt/cellstore
ENV PATH=/opt/cellstore/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    CELLSTORE_DATA_DIR=/data \
    CELLSTORE_LISTEN=0.0.0.0:9700
USER cellstore
VOLUME /data
EXPOSE 9700
# Within the default --drain-secs and what closing the cells takes.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9700/readyz', timeout=2)"]
ENTRYPOINT ["cellstore"]
CMD ["serve"]
