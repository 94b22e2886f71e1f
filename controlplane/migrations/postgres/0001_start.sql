-- The first schema. Identifiers are the 16 bytes of a UUID, times are Unix
-- milliseconds, flags are 0 or 1, memory is in bytes, CPU in thousandths of a
-- core. Once released this file never changes: its checksum is verified.

CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
);

CREATE TABLE workspaces (
  id BYTEA PRIMARY KEY CHECK (length(id) = 16),
  name TEXT NOT NULL UNIQUE,
  created_ms BIGINT NOT NULL
);

CREATE TABLE workers (
  id BYTEA PRIMARY KEY CHECK (length(id) = 16),
  workspace BYTEA REFERENCES workspaces (id),
  bound_workspace BYTEA REFERENCES workspaces (id),
  pool TEXT NOT NULL,
  hostname TEXT NOT NULL,
  cpu_millis BIGINT NOT NULL,
  memory_bytes BIGINT NOT NULL,
  gpu_type TEXT NOT NULL,
  gpu_count BIGINT NOT NULL,
  runtime TEXT NOT NULL,
  node TEXT NOT NULL,
  build TEXT NOT NULL,
  state TEXT NOT NULL,
  created_ms BIGINT NOT NULL,
  last_seen_ms BIGINT NOT NULL
);

CREATE TABLE tokens (
  id BYTEA PRIMARY KEY CHECK (length(id) = 16),
  workspace BYTEA REFERENCES workspaces (id),
  kind TEXT NOT NULL,
  hash BYTEA NOT NULL UNIQUE CHECK (length(hash) = 32),
  hint TEXT NOT NULL,
  created_ms BIGINT NOT NULL,
  last_used_ms BIGINT,
  expires_ms BIGINT,
  revoked_ms BIGINT,
  container BYTEA,
  worker BYTEA,
  pool TEXT,
  shared BIGINT NOT NULL,
  claimed_instance BYTEA,
  confirmed BIGINT NOT NULL
);
CREATE INDEX tokens_by_workspace ON tokens (workspace, id);

CREATE TABLE stubs (
  id BYTEA PRIMARY KEY CHECK (length(id) = 16),
  workspace BYTEA NOT NULL REFERENCES workspaces (id),
  type TEXT NOT NULL,
  name TEXT NOT NULL,
  config BYTEA NOT NULL,
  config_hash BYTEA NOT NULL CHECK (length(config_hash) = 32),
  object BYTEA,
  image BYTEA,
  created_ms BIGINT NOT NULL,
  UNIQUE (workspace, type, name, config_hash)
);

CREATE TABLE deployments (
  id BYTEA PRIMARY KEY CHECK (length(id) = 16),
  workspace BYTEA NOT NULL REFERENCES workspaces (id),
  name TEXT NOT NULL,
  version BIGINT NOT NULL,
  stub BYTEA NOT NULL REFERENCES stubs (id),
  active BIGINT NOT NULL,
  slug TEXT UNIQUE,
  created_ms BIGINT NOT NULL,
  UNIQUE (workspace, name, version)
);

CREATE TABLE containers (
  id BYTEA NOT NULL CHECK (length(id) = 16),
  generation BIGINT NOT NULL,
  workspace BYTEA NOT NULL REFERENCES workspaces (id),
  worker BYTEA NOT NULL,
  stub BYTEA NOT NULL REFERENCES stubs (id),
  state TEXT NOT NULL,
  cpu_millis BIGINT NOT NULL,
  memory_bytes BIGINT NOT NULL,
  gpu_type TEXT NOT NULL,
  gpu_count BIGINT NOT NULL,
  created_ms BIGINT NOT NULL,
  ended_ms BIGINT,
  last_event BIGINT NOT NULL,
  PRIMARY KEY (id, generation)
);

CREATE TABLE tasks (
  id BYTEA PRIMARY KEY CHECK (length(id) = 16),
  workspace BYTEA NOT NULL REFERENCES workspaces (id),
  stub BYTEA NOT NULL REFERENCES stubs (id),
  name TEXT NOT NULL,
  status TEXT NOT NULL,
  created_ms BIGINT NOT NULL,
  started_ms BIGINT,
  ended_ms BIGINT,
  exit_code BIGINT,
  reason TEXT NOT NULL,
  attempts BIGINT NOT NULL,
  max_retries BIGINT NOT NULL,
  timeout_ms BIGINT,
  detached BIGINT NOT NULL,
  pool TEXT,
  callers_gone_ms BIGINT,
  cancel_reason TEXT,
  lines_reserved BIGINT NOT NULL,
  cpu_millis BIGINT NOT NULL,
  memory_bytes BIGINT NOT NULL,
  gpu_type TEXT NOT NULL,
  gpu_count BIGINT NOT NULL,
  cpu_given BIGINT NOT NULL,
  memory_given BIGINT NOT NULL,
  command BYTEA NOT NULL,
  env BYTEA NOT NULL
);
CREATE INDEX tasks_by_workspace ON tasks (workspace, id);
CREATE INDEX tasks_by_stub ON tasks (stub);
CREATE INDEX tasks_waiting ON tasks (created_ms, id) WHERE status IN ('PENDING', 'RETRY');
CREATE INDEX tasks_live ON tasks (id) WHERE status IN ('PENDING', 'RUNNING', 'RETRY');
CREATE INDEX tasks_ended ON tasks (ended_ms) WHERE ended_ms IS NOT NULL;
CREATE INDEX tasks_without_callers ON tasks (callers_gone_ms) WHERE callers_gone_ms IS NOT NULL;

CREATE TABLE attempts (
  task BYTEA NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
  number BIGINT NOT NULL,
  container BYTEA NOT NULL,
  generation BIGINT NOT NULL,
  worker BYTEA NOT NULL,
  state TEXT NOT NULL,
  base_line BIGINT NOT NULL,
  created_ms BIGINT NOT NULL,
  started_ms BIGINT,
  ended_ms BIGINT,
  reason TEXT NOT NULL,
  log_next BIGINT NOT NULL,
  log_total BIGINT,
  PRIMARY KEY (task, number),
  FOREIGN KEY (container, generation) REFERENCES containers (id, generation)
);
CREATE INDEX attempts_by_container ON attempts (container, generation);

CREATE TABLE log_segments (
  id BYTEA PRIMARY KEY CHECK (length(id) = 16),
  task BYTEA NOT NULL,
  attempt BIGINT NOT NULL,
  first_index BIGINT NOT NULL,
  next_index BIGINT NOT NULL,
  first_line BIGINT NOT NULL,
  next_line BIGINT NOT NULL,
  object_key TEXT NOT NULL,
  bytes BIGINT NOT NULL,
  created_ms BIGINT NOT NULL,
  UNIQUE (task, attempt, first_index),
  FOREIGN KEY (task, attempt) REFERENCES attempts (task, number)
);
CREATE INDEX log_segments_by_line ON log_segments (task, next_line);
CREATE INDEX log_segments_by_age ON log_segments (created_ms, id);

-- `workspace` is 16 zero bytes for a request that speaks for none.
CREATE TABLE calls (
  workspace BYTEA NOT NULL CHECK (length(workspace) = 16),
  request_id BYTEA NOT NULL CHECK (length(request_id) = 16),
  answer BYTEA NOT NULL,
  created_ms BIGINT NOT NULL,
  PRIMARY KEY (workspace, request_id)
);
CREATE INDEX calls_by_age ON calls (created_ms);

CREATE TABLE leases (
  name TEXT PRIMARY KEY,
  holder BYTEA,
  epoch BIGINT NOT NULL,
  expires_ms BIGINT NOT NULL
);
