# What both images begin with: any Debian, with what is missing of it installed, a user of ours, and no program that
# gives its caller more rights. Built once a week by `deploy/docker/build` and kept, so that a new version of levers9
# is only its binaries to whoever pulls it.
ARG BASE
FROM ${BASE}

RUN set -eu; \
    if ! command -v python3 >/dev/null || ! [ -s /etc/ssl/certs/ca-certificates.crt ]; then \
        export DEBIAN_FRONTEND=noninteractive; \
        apt-get update -qq; \
        apt-get install -y -qq --no-install-recommends ca-certificates libgcc-s1 python3; \
        rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/* /var/log/*; \
    fi; \
    find / -xdev -type f -perm /6000 -exec chmod a-s {} +; \
    echo 'levers9:x:65532:65532:levers9:/tmp:/usr/sbin/nologin' >>/etc/passwd; \
    echo 'levers9:x:65532:' >>/etc/group; \
    mkdir -p /var/lib/levers9; \
    mkdir -m 0700 /var/lib/levers9/worker; \
    chown -R 65532:65532 /var/lib/levers9
