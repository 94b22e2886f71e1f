-- Attached clusters, the workers ordered on them, and what their tokens are
-- bound to. `settings` is a ClusterSettings message, `enrolment` a sealed token.

CREATE TABLE clusters (
  id BYTEA PRIMARY KEY CHECK (length(id) = 16),
  workspace BYTEA NOT NULL REFERENCES workspaces (id),
  name TEXT NOT NULL,
  settings BYTEA NOT NULL,
  shared BIGINT NOT NULL,
  created_ms BIGINT NOT NULL,
  last_seen_ms BIGINT,
  agent_build TEXT NOT NULL,
  kubernetes TEXT NOT NULL,
  UNIQUE (workspace, name)
);

-- A node has at most one worker that is on its way.
CREATE TABLE pool_workers (
  worker BYTEA PRIMARY KEY CHECK (length(worker) = 16),
  cluster BYTEA NOT NULL REFERENCES clusters (id) ON DELETE CASCADE,
  node TEXT NOT NULL,
  state TEXT NOT NULL,
  workspace BYTEA REFERENCES workspaces (id),
  cpu_millis BIGINT NOT NULL,
  memory_bytes BIGINT NOT NULL,
  gpu_type TEXT NOT NULL,
  gpu_count BIGINT NOT NULL,
  enrolment BYTEA NOT NULL,
  created_ms BIGINT NOT NULL
);
CREATE UNIQUE INDEX pool_workers_pending ON pool_workers (cluster, node) WHERE state = 'pending';

ALTER TABLE tokens ADD COLUMN cluster BYTEA;
ALTER TABLE tokens ADD COLUMN node TEXT;
CREATE INDEX tokens_by_cluster ON tokens (cluster) WHERE cluster IS NOT NULL;
ALTER TABLE workers ADD COLUMN cluster BYTEA;
