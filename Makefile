# levers9: build, run, check. Build caches live outside the checkout, so that
# a fresh clone reuses them.

CACHE := $(HOME)/.cache/levers9
export CARGO_TARGET_DIR ?= $(CACHE)/target
TOOLS := $(CACHE)/tools
CARGO_DENY_VERSION := 0.20.2
BIN := $(CARGO_TARGET_DIR)/release

.PHONY: dev build images test lab test-services lint fmt bench clean

# The main job on embedded defaults: a controlplane and a worker on this machine.
dev:
	cargo build --release -p levers9
	@$(BIN)/levers9 dev

build:
	cargo build --release --workspace

# The container images, with docker or buildah; deploy/docker/README.md says more. IMAGE_PREFIX, TAG, ENGINE and BASE
# can be given, as in `make images IMAGE_PREFIX=registry.example.org/levers9 TAG=1.2`.
images:
	cargo build --profile dist -p levers9-agent -p levers9-worker -p levers9-controlplane
	@./deploy/docker/build $(CARGO_TARGET_DIR)/dist

# Everything. What the tests need and the machine lacks is installed first.
test: test-services
	cargo build --workspace --bins
	cargo test --workspace --no-fail-fast

# A Kubernetes control plane with nodes that are only objects, to try `levers9 cluster` on. Needs root.
lab: test-services
	cargo build --workspace --bins
	@$(CARGO_TARGET_DIR)/debug/levers9-test-lab

test-services:
	@./.ci/services

lint: $(TOOLS)/bin/cargo-deny
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	$(TOOLS)/bin/cargo-deny --log-level error check bans licenses sources

fmt:
	cargo fmt --all

# Speed and memory beside peers, in one run each: transport, how long it is away when the ground moves, the CLI, into
# containers (beside nginx, which has to be there), the agent in a large cluster. Takes minutes.
bench:
	cargo build --profile dist -p levers9-bench -p levers9 -p levers9-agent
	$(CARGO_TARGET_DIR)/dist/levers9-bench transport
	$(CARGO_TARGET_DIR)/dist/levers9-bench moves
	$(CARGO_TARGET_DIR)/dist/levers9-bench run --cli $(CARGO_TARGET_DIR)/dist/levers9
	$(CARGO_TARGET_DIR)/dist/levers9-bench reach --cli $(CARGO_TARGET_DIR)/dist/levers9
	$(CARGO_TARGET_DIR)/dist/levers9-bench agent --agent $(CARGO_TARGET_DIR)/dist/levers9-agent

$(TOOLS)/bin/cargo-deny:
	cargo install --locked --debug --no-default-features --root $(TOOLS) \
		--target-dir $(CACHE)/tools-target cargo-deny@$(CARGO_DENY_VERSION)

clean:
	cargo clean
