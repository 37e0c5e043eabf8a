# One image for every command; the compose file says which. Python 3.11: the locks were made with it.
FROM python:3.11-slim AS build
WORKDIR /build
RUN python -m venv /opt/relay
COPY requirements.lock ./
RUN /opt/relay/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md ./
COPY relay relay
COPY consumers consumers
COPY schemas schemas
RUN /opt/relay/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation .

FROM python:3.11-slim
# A fixed id, so that the volumes belong to the same account after an upgrade.
RUN useradd --system --uid 10001 --home-dir /var/lib/relay --create-home relay \
 && install --directory --owner relay --group relay --mode 0700 /var/lib/relay/spool /var/lib/relay/outputs
COPY --from=build /opt/relay /opt/relay
ENV PATH=/opt/relay/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RELAY_LOG_FORMAT=json \
    RELAY_SPOOL=/var/lib/relay/spool \
    RELAY_OUTPUTS_URL=file:///var/lib/relay/outputs
USER relay
WORKDIR /var/lib/relay
# The dispatcher's spool is evidence: it must survive the container.
VOLUME ["/var/lib/relay/spool", "/var/lib/relay/outputs"]
ENTRYPOINT ["relay"]
CMD ["--help"]
