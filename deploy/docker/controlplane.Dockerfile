# The controlplane image: levers9-controlplane, the shared libraries it is linked to, CA certificates. No shell, no
# packages.
#
# BASE is what `deploy/docker/build` made from base.Dockerfile; the context holds the binary and nothing else.
ARG BASE
FROM ${BASE} AS whole

COPY bin/ /usr/local/bin/
# The libraries by the names they are looked up under, as files and not as links.
RUN set -eu; \
    levers9-controlplane --version; \
    mkdir -p /least/dev /least/etc/levers9 /least/proc /least/run /least/sys /least/tmp /least/var/lib; \
    chmod 1777 /least/tmp; \
    LD_TRACE_LOADED_OBJECTS=1 levers9-controlplane | grep -o '/[^ ]*' | xargs cp --dereference --parents --target-directory=/least; \
    cp --dereference --parents --target-directory=/least \
        /usr/local/bin/levers9-controlplane /etc/ssl/certs/ca-certificates.crt /etc/nsswitch.conf /etc/os-release \
        /etc/passwd /etc/group /usr/share/doc/libc6/copyright /usr/share/doc/ca-certificates/copyright; \
    mkdir -p /least/usr/share/doc/libgcc-s1; \
    cp --dereference /usr/share/doc/libgcc-s1/copyright /least/usr/share/doc/libgcc-s1/; \
    mkdir -m 0700 /least/var/lib/levers9; \
    chown 65532:65532 /least/var/lib/levers9

FROM scratch
COPY --from=whole /least/ /

ENV PATH=/usr/local/bin LEVERS9_CONFIG=/etc/levers9/controlplane.yaml
USER 65532:65532
WORKDIR /
ENTRYPOINT ["levers9-controlplane"]
LABEL org.opencontainers.image.title="levers9 controlplane" \
      org.opencontainers.image.description="levers9-controlplane: serves agents, workers, the levers9 CLI and the Python SDK" \
      org.opencontainers.image.licenses="Apache-2.0"
