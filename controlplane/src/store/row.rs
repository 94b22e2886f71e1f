//! Reads one row into typed values. What cannot be read is named with its
//! table and column, for whoever has to repair it.

use std::fmt::Display;

use levers9_wire::id::BadId;
use sqlx::any::AnyRow;
use sqlx::{Any, Decode, Row as _, Type};

use super::StoreError;

/// The columns of one table in a row, which may be a join of several.
#[derive(Clone, Copy)]
pub(super) struct Row<'r> {
    row: &'r AnyRow,
    table: &'static str,
    prefix: &'static str,
}

impl<'r> Row<'r> {
    /// A row of one table.
    pub(super) fn new(row: &'r AnyRow, table: &'static str) -> Self {
        Self { row, table, prefix: "" }
    }

    /// The part of a joined row whose columns begin with `prefix`.
    pub(super) fn part(row: &'r AnyRow, table: &'static str, prefix: &'static str) -> Self {
        Self { row, table, prefix }
    }

    pub(super) fn corrupt(&self, column: &str, problem: impl Display) -> StoreError {
        StoreError::Corrupt { table: self.table, column: column.to_owned(), problem: problem.to_string() }
    }

    fn get<T: Decode<'r, Any> + Type<Any>>(&self, column: &str) -> Result<Option<T>, StoreError> {
        let name = format!("{}{column}", self.prefix);
        self.row.try_get::<Option<T>, _>(name.as_str()).map_err(|error| self.corrupt(column, error))
    }

    fn there<T>(&self, column: &str, value: Option<T>) -> Result<T, StoreError> {
        value.ok_or_else(|| self.corrupt(column, "is NULL"))
    }

    pub(super) fn opt_int(&self, column: &str) -> Result<Option<i64>, StoreError> {
        self.get(column)
    }

    pub(super) fn int(&self, column: &str) -> Result<i64, StoreError> {
        self.there(column, self.opt_int(column)?)
    }

    /// An integer in the narrower type it came from.
    pub(super) fn opt_number<T: TryFrom<i64>>(&self, column: &str) -> Result<Option<T>, StoreError> {
        let narrow = |value| T::try_from(value).map_err(|_| self.corrupt(column, format!("is {value}")));
        self.opt_int(column)?.map(narrow).transpose()
    }

    /// An integer in the narrower type it came from.
    pub(super) fn number<T: TryFrom<i64>>(&self, column: &str) -> Result<T, StoreError> {
        self.there(column, self.opt_number(column)?)
    }

    pub(super) fn flag(&self, column: &str) -> Result<bool, StoreError> {
        Ok(self.int(column)? != 0)
    }

    pub(super) fn opt_text(&self, column: &str) -> Result<Option<String>, StoreError> {
        self.get(column)
    }

    pub(super) fn text(&self, column: &str) -> Result<String, StoreError> {
        self.there(column, self.opt_text(column)?)
    }

    pub(super) fn opt_blob(&self, column: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.get(column)
    }

    pub(super) fn blob(&self, column: &str) -> Result<Vec<u8>, StoreError> {
        self.there(column, self.opt_blob(column)?)
    }

    /// A hash or other value of a fixed length.
    pub(super) fn fixed<const N: usize>(&self, column: &str) -> Result<[u8; N], StoreError> {
        let bytes = self.blob(column)?;
        let problem = |bytes: Vec<u8>| self.corrupt(column, format!("has {} bytes, not {N}", bytes.len()));
        bytes.try_into().map_err(problem)
    }

    pub(super) fn opt_id<T: for<'b> TryFrom<&'b [u8], Error = BadId>>(
        &self,
        column: &str,
    ) -> Result<Option<T>, StoreError> {
        let read = |bytes: Vec<u8>| T::try_from(&bytes).map_err(|error| self.corrupt(column, error));
        self.opt_blob(column)?.map(read).transpose()
    }

    pub(super) fn id<T: for<'b> TryFrom<&'b [u8], Error = BadId>>(
        &self,
        column: &str,
    ) -> Result<T, StoreError> {
        self.there(column, self.opt_id(column)?)
    }

    /// A word of a closed set.
    pub(super) fn word<T>(&self, column: &str, read: fn(&str) -> Option<T>) -> Result<T, StoreError> {
        let word = self.text(column)?;
        read(&word).ok_or_else(|| self.corrupt(column, format!("is {word:?}")))
    }
}
