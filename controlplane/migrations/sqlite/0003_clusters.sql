-- Attached clusters, the workers ordered on them, and what their tokens are
-- bound to. `settings` is a ClusterSettings message, `enrolment` a sealed token.

CREATE TABLE clusters (
  id BLOB PRIMARY KEY CHECK (length(id) = 16),
  workspace BLOB NOT NULL REFERENCES workspaces (id),
  name TEXT NOT NULL,
  settings BLOB NOT NULL,
  shared INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  last_seen_ms INTEGER,
  agent_build TEXT NOT NULL,
  kubernetes TEXT NOT NULL,
  UNIQUE (workspace, name)
) STRICT;

-- A node has at most one worker that is on its way.
CREATE TABLE pool_workers (
  worker BLOB PRIMARY KEY CHECK (length(worker) = 16),
  cluster BLOB NOT NULL REFERENCES clusters (id) ON DELETE CASCADE,
  node TEXT NOT NULL,
  state TEXT NOT NULL,
  workspace BLOB REFERENCES workspaces (id),
  cpu_millis INTEGER NOT NULL,
  memory_bytes INTEGER NOT NULL,
  gpu_type TEXT NOT NULL,
  gpu_count INTEGER NOT NULL,
  enrolment BLOB NOT NULL,
  created_ms INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX pool_workers_pending ON pool_workers (cluster, node) WHERE state = 'pending';

ALTER TABLE tokens ADD COLUMN cluster BLOB;
ALTER TABLE tokens ADD COLUMN node TEXT;
CREATE INDEX tokens_by_cluster ON tokens (cluster) WHERE cluster IS NOT NULL;
ALTER TABLE workers ADD COLUMN cluster BLOB;
