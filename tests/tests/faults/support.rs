//! What these tests share: jobs whose output can be judged, and the judging.

use std::time::Duration;

use levers9_tests::live::tail;
use serde_json::Value;

/// Long enough for anything that needs no timer of the product.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Long enough for what needs several processes to find each other again.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A script that prints 1 to `count`, `per_second` a second.
pub(crate) fn counting(count: u32, per_second: u32) -> String {
    let pause = 1.0 / f64::from(per_second);
    format!("i=0; while [ $i -lt {count} ]; do i=$((i+1)); echo $i; sleep {pause}; done")
}

/// The last whole number that was printed; 0 for none.
pub(crate) fn last_number(text: &str) -> u32 {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().last().and_then(|line| line.parse().ok()).unwrap_or(0)
}

/// Fails unless the text is exactly the numbers from 1 to `count`, a line each.
#[track_caller]
pub(crate) fn assert_counts(text: &str, count: u32, who: &str) {
    let mut expected = 1;
    for line in text.lines() {
        assert!(
            line == expected.to_string(),
            "{who}: line {line:?} where {expected} was to come; around it:\n{}",
            around(text, expected)
        );
        expected += 1;
    }
    assert!(expected == count + 1, "{who}: ends after {} of {count}:\n{}", expected - 1, tail(text, 200));
}

fn around(text: &str, line: u32) -> String {
    let at = usize::try_from(line).unwrap_or(0);
    text.lines().skip(at.saturating_sub(5)).take(10).collect::<Vec<_>>().join("\n")
}

/// A text field of a JSON object.
#[track_caller]
pub(crate) fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("no text {key:?} in {value:#}"))
}
