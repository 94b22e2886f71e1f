-- The controlplanes that run on this database, each with where peers may dial
-- it; empty where it cannot tell. Times are the database's.

CREATE TABLE replicas (
  instance BYTEA PRIMARY KEY CHECK (length(instance) = 16),
  address TEXT NOT NULL,
  expires_ms BIGINT NOT NULL
);
