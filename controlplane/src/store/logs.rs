//! Where log records are: which line numbers are given out, which records are
//! durable, and in which object. The records themselves are never here.

use levers9_wire::{AttemptNumber, TaskId};
use sqlx::any::AnyRow;

use super::row::Row;
use super::sql::{Query, Sql, number, page, query};
use super::{Store, StoreError, tasks};

const COLUMNS: &str =
    "id, task, attempt, first_index, next_index, first_line, next_line, object_key, bytes, created_ms";

/// How many ids one statement deletes.
const DELETE_CHUNK: usize = 500;

/// The identity of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SegmentId(pub [u8; 16]);

/// A run of log records of one attempt, in one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its identity.
    pub id: SegmentId,
    /// Whose records.
    pub task: TaskId,
    /// Of which attempt.
    pub attempt: AttemptNumber,
    /// The index of its first record in the attempt.
    pub first_index: u64,
    /// The index after its last.
    pub next_index: u64,
    /// The line number of its first record in the task.
    pub first_line: u64,
    /// The line number after its last.
    pub next_line: u64,
    /// The object that holds the records.
    pub object_key: String,
    /// That object's size.
    pub bytes: u64,
    /// When it was sealed.
    pub created_ms: i64,
}

/// What became of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentAdded {
    /// Its records are durable now.
    Added,
    /// They were durable before, by an equal segment.
    AlreadyThere,
    /// It leaves a gap or overlaps; this is the index the next one must begin with.
    Expected(u64),
    /// There is no such attempt, or its lines are not its own to use.
    Refused,
}

/// How much all segments amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SegmentTotals {
    /// How many there are.
    pub segments: u64,
    /// Their objects' sizes together.
    pub bytes: u64,
}

impl Segment {
    fn read(row: &AnyRow) -> Result<Self, StoreError> {
        let row = Row::new(row, "log_segments");
        Ok(Self {
            id: SegmentId(row.fixed("id")?),
            task: row.id("task")?,
            attempt: AttemptNumber(row.number("attempt")?),
            first_index: row.number("first_index")?,
            next_index: row.number("next_index")?,
            first_line: row.number("first_line")?,
            next_line: row.number("next_line")?,
            object_key: row.text("object_key")?,
            bytes: row.number("bytes")?,
            created_ms: row.int("created_ms")?,
        })
    }

    fn insert(&self) -> Result<Query, StoreError> {
        Ok(query(format!(
            "INSERT INTO log_segments ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
        ))
        .bind(self.id.0.to_vec())
        .bind(self.task.to_wire())
        .bind(i64::from(self.attempt.0))
        .bind(number(self.first_index)?)
        .bind(number(self.next_index)?)
        .bind(number(self.first_line)?)
        .bind(number(self.next_line)?)
        .bind(self.object_key.clone())
        .bind(number(self.bytes)?)
        .bind(self.created_ms))
    }

    /// Whether it holds anything, and its lines are its indexes from a base on.
    fn is_sound(&self, base_line: u64) -> bool {
        self.next_index > self.first_index
            && base_line.checked_add(self.first_index) == Some(self.first_line)
            && base_line.checked_add(self.next_index) == Some(self.next_line)
    }
}

/// The line number an attempt's lines must stay below: the base of the one
/// after it, or what is reserved.
async fn line_limit(sql: &mut Sql<'_>, segment: &Segment) -> Result<Option<(u64, u64, u64)>, StoreError> {
    let limits = sqlx::query(
        "SELECT a.base_line, a.log_next, COALESCE((SELECT MIN(later.base_line) FROM attempts later \
         WHERE later.task = a.task AND later.number > a.number), t.lines_reserved) AS line_limit \
         FROM attempts a JOIN tasks t ON t.id = a.task WHERE a.task = $1 AND a.number = $2",
    );
    let limits = limits.bind(segment.task.to_wire()).bind(i64::from(segment.attempt.0));
    let Some(row) = sql.fetch_one(limits).await? else { return Ok(None) };
    let row = Row::new(&row, "attempts");
    Ok(Some((row.number("base_line")?, row.number("log_next")?, row.number("line_limit")?)))
}

async fn add(sql: &mut Sql<'_>, segment: &Segment) -> Result<SegmentAdded, StoreError> {
    if tasks::locked(sql, segment.task).await?.is_none() {
        return Ok(SegmentAdded::Refused);
    }
    let Some((base_line, log_next, line_limit)) = line_limit(sql, segment).await? else {
        return Ok(SegmentAdded::Refused);
    };
    if !segment.is_sound(base_line) || segment.next_line > line_limit {
        return Ok(SegmentAdded::Refused);
    }
    if segment.first_index != log_next {
        let same = query(format!(
            "SELECT {COLUMNS} FROM log_segments WHERE task = $1 AND attempt = $2 AND first_index = $3"
        ))
        .bind(segment.task.to_wire())
        .bind(i64::from(segment.attempt.0))
        .bind(number(segment.first_index)?);
        let before = sql.fetch_one(same).await?.as_ref().map(Segment::read).transpose()?;
        let same = before.is_some_and(|before| before.next_index == segment.next_index);
        return Ok(if same { SegmentAdded::AlreadyThere } else { SegmentAdded::Expected(log_next) });
    }
    sql.execute(segment.insert()?).await?;
    let durable = sqlx::query("UPDATE attempts SET log_next = $3 WHERE task = $1 AND number = $2")
        .bind(segment.task.to_wire())
        .bind(i64::from(segment.attempt.0))
        .bind(number(segment.next_index)?);
    sql.execute(durable).await?;
    Ok(SegmentAdded::Added)
}

impl Store {
    /// Gives out the line numbers of a task below `upto`, never fewer than
    /// before. Answers how many are given out; `None` when there is no task.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn reserve_lines(&self, task: TaskId, upto: u64) -> Result<Option<u64>, StoreError> {
        let query = sqlx::query(
            "UPDATE tasks SET lines_reserved = CASE WHEN lines_reserved < $2 THEN $2 ELSE lines_reserved END \
             WHERE id = $1 RETURNING lines_reserved",
        );
        let row = self.fetch_one(query.bind(task.to_wire()).bind(number(upto)?)).await?;
        row.map(|row| Row::new(&row, "tasks").number("lines_reserved")).transpose()
    }

    /// Notes that a segment is durable. Segments of an attempt follow one
    /// another without gap or overlap, within the attempt's lines.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when its id exists.
    pub async fn add_segment(&self, segment: Segment) -> Result<SegmentAdded, StoreError> {
        self.transact(move |sql| Box::pin(async move { add(sql, &segment).await })).await
    }

    /// The segments of a task that hold a line from `from_line` on, in order.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn segments(
        &self,
        task: TaskId,
        from_line: u64,
        limit: u32,
    ) -> Result<Vec<Segment>, StoreError> {
        let list = query(format!(
            "SELECT {COLUMNS} FROM log_segments WHERE task = $1 AND next_line > $2 ORDER BY next_line LIMIT $3"
        ));
        let list = list.bind(task.to_wire()).bind(number(from_line)?).bind(page(limit));
        self.fetch(list).await?.iter().map(Segment::read).collect()
    }

    /// How much all segments amount to.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn segment_totals(&self) -> Result<SegmentTotals, StoreError> {
        let query = sqlx::query(
            "SELECT COUNT(*) AS segments, CAST(COALESCE(SUM(bytes), 0) AS BIGINT) AS bytes FROM log_segments",
        );
        let Some(row) = self.fetch_one(query).await? else { return Ok(SegmentTotals::default()) };
        let row = Row::new(&row, "log_segments");
        Ok(SegmentTotals { segments: row.number("segments")?, bytes: row.number("bytes")? })
    }

    /// The segments sealed first, of all tasks.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn oldest_segments(&self, limit: u32) -> Result<Vec<Segment>, StoreError> {
        let list = query(format!("SELECT {COLUMNS} FROM log_segments ORDER BY created_ms, id LIMIT $1"));
        self.fetch(list.bind(page(limit))).await?.iter().map(Segment::read).collect()
    }

    /// Forgets segments, whose objects are deleted already, and tells how many
    /// there were.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn delete_segments(&self, ids: Vec<SegmentId>) -> Result<u64, StoreError> {
        self.transact(move |sql| {
            Box::pin(async move {
                let mut deleted = 0;
                for chunk in ids.chunks(DELETE_CHUNK) {
                    let places: Vec<String> = (1..=chunk.len()).map(|n| format!("${n}")).collect();
                    let delete =
                        query(format!("DELETE FROM log_segments WHERE id IN ({})", places.join(", ")));
                    let delete = chunk.iter().fold(delete, |delete, id| delete.bind(id.0.to_vec()));
                    deleted += sql.execute(delete).await?;
                }
                Ok(deleted)
            })
        })
        .await
    }

    /// Forgets up to `limit` tasks that ended before a time, with their
    /// attempts and containers, and tells how many. A task that has segments
    /// stays until those are deleted: nothing else knows of their objects.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn delete_tasks_older_than(&self, ended_before_ms: i64, limit: u32) -> Result<u64, StoreError> {
        self.transact(move |sql| {
            Box::pin(async move {
                let old = sqlx::query(
                    "SELECT id FROM tasks t WHERE ended_ms < $1 \
                     AND NOT EXISTS (SELECT 1 FROM log_segments s WHERE s.task = t.id) ORDER BY ended_ms LIMIT $2",
                );
                let rows = sql.fetch(old.bind(ended_before_ms).bind(page(limit))).await?;
                for row in &rows {
                    let task: TaskId = Row::new(row, "tasks").id("id")?;
                    delete_task(sql, task).await?;
                }
                Ok(rows.len() as u64)
            })
        })
        .await
    }
}

async fn delete_task(sql: &mut Sql<'_>, task: TaskId) -> Result<(), StoreError> {
    let ran = sqlx::query("SELECT DISTINCT container FROM attempts WHERE task = $1").bind(task.to_wire());
    let ran = sql.fetch(ran).await?;
    // Its attempts go with it.
    sql.execute(sqlx::query("DELETE FROM tasks WHERE id = $1").bind(task.to_wire())).await?;
    for row in &ran {
        let container = Row::new(row, "attempts").blob("container")?;
        let unused = sqlx::query(
            "DELETE FROM containers WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM attempts a \
             WHERE a.container = containers.id AND a.generation = containers.generation)",
        );
        sql.execute(unused.bind(container)).await?;
    }
    Ok(())
}
