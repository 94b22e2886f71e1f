# The worker image: levers9-agent, levers9-worker and what jobs of the `process` runtime may call (sh, coreutils,
# python3). Pods name the binary they want; started by hand it is a worker.
#
# BASE is what `deploy/docker/build` made from base.Dockerfile; the context holds the binaries and nothing else.
ARG BASE
FROM ${BASE}

COPY bin/ /usr/local/bin/
# A base older than the binaries' libc is found here and not in a cluster.
RUN levers9-agent --version && levers9-worker --version

ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
USER 65532:65532
WORKDIR /
ENTRYPOINT ["levers9-worker"]
LABEL org.opencontainers.image.title="levers9 worker" \
      org.opencontainers.image.description="levers9-agent and levers9-worker, for attached clusters and machines" \
      org.opencontainers.image.licenses="Apache-2.0"
