-- What of a task HTTP requests may reach, and where; and the tokens that end
-- with their container. `ports` is a JSON list of numbers.

ALTER TABLE tasks ADD COLUMN slug TEXT;
ALTER TABLE tasks ADD COLUMN ports TEXT;
ALTER TABLE tasks ADD COLUMN public BIGINT NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX tasks_by_slug ON tasks (slug) WHERE slug IS NOT NULL;
CREATE INDEX tokens_by_container ON tokens (container) WHERE container IS NOT NULL;
