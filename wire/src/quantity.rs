//! Amounts as people type and read them: CPU, memory and durations. The CLI,
//! configuration files and messages use these; Kubernetes quantities, whose
//! grammar is wider, are read by the agent.

use std::time::Duration;

/// Why an amount cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAmount {
    /// CPU text that is no amount.
    #[error("{0:?} is not an amount of CPU; write cores (2, 0.5) or thousandths of one (500m)")]
    Cpu(String),
    /// Memory text that is no amount.
    #[error("{0:?} is not an amount of memory; write a number with a unit: 512Mi, 2Gi, 500M or 1G")]
    Memory(String),
    /// Duration text that is no duration.
    #[error("{0:?} is not a duration; write 90s, 10m, 2h, 1d, or seconds as a bare number")]
    Duration(String),
    /// Zero or less, where something is needed.
    #[error("{0:?} is zero; leave the option out for no limit")]
    Zero(String),
    /// More than can be counted.
    #[error("{0:?} is more than can be counted")]
    TooLarge(String),
}

/// Thousandths of a core from `2`, `0.5` or `500m`.
///
/// # Errors
/// When the text is something else, zero, or too large.
pub fn cpu_millis(text: &str) -> Result<u64, BadAmount> {
    let bad = || BadAmount::Cpu(text.to_owned());
    let millis = match text.strip_suffix('m') {
        Some(digits) => digits.parse::<u32>().map_err(|_| bad())?.into(),
        None => scaled(text, 1_000, text).map_err(|huge| huge.unwrap_or_else(bad))?,
    };
    positive(text, millis)
}

/// Bytes from `512Mi`, `2Gi`, `500M`, `1G` and the like; a unit is required.
///
/// # Errors
/// When the text is something else, has no unit, is zero, or too large.
pub fn memory_bytes(text: &str) -> Result<u64, BadAmount> {
    let bad = || BadAmount::Memory(text.to_owned());
    let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(bad)?;
    let (number, unit) = text.split_at(split);
    let factor: u64 = match unit {
        "k" | "K" | "kB" | "KB" => 1_000,
        "M" | "MB" => 1_000_000,
        "G" | "GB" => 1_000_000_000,
        "T" | "TB" => 1_000_000_000_000,
        "Ki" | "KiB" => 1 << 10,
        "Mi" | "MiB" => 1 << 20,
        "Gi" | "GiB" => 1 << 30,
        "Ti" | "TiB" => 1 << 40,
        _ => return Err(bad()),
    };
    positive(text, scaled(number, factor, text).map_err(|huge| huge.unwrap_or_else(bad))?)
}

/// A duration from `90s`, `10m`, `2h`, `1d`, `250ms` or seconds as a bare
/// number.
///
/// # Errors
/// When the text is something else or too large.
pub fn duration(text: &str) -> Result<Duration, BadAmount> {
    let bad = || BadAmount::Duration(text.to_owned());
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let millis_each: u64 = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(bad()),
    };
    let millis = scaled(number, millis_each, text).map_err(|huge| huge.unwrap_or_else(bad))?;
    // Databases count in signed 64 bits; no sensible limit is longer than a century.
    if millis > 100 * 366 * 86_400_000 {
        return Err(BadAmount::TooLarge(text.to_owned()));
    }
    Ok(Duration::from_millis(millis))
}

/// Memory for people: the largest binary unit that keeps one decimal.
#[must_use]
pub fn show_memory(bytes: u64) -> String {
    for (name, size) in [("Ti", 1u64 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)] {
        if bytes >= size {
            let tenths = (u128::from(bytes) * 10 + u128::from(size) / 2) / u128::from(size);
            let (whole, tenth) = (tenths / 10, tenths % 10);
            return if tenth == 0 { format!("{whole}{name}") } else { format!("{whole}.{tenth}{name}") };
        }
    }
    format!("{bytes}B")
}

/// CPU for people: whole cores as a number, else thousandths.
#[must_use]
pub fn show_cpu(millis: u64) -> String {
    if millis.is_multiple_of(1_000) { (millis / 1_000).to_string() } else { format!("{millis}m") }
}

/// A duration for people, in at most two units: `45s`, `3m20s`, `2h5m`, `3d4h`.
#[must_use]
pub fn show_duration(duration: Duration) -> String {
    let s = duration.as_secs();
    match s {
        0 if duration.is_zero() => "0s".to_owned(),
        0 => format!("{}ms", duration.subsec_millis()),
        1..60 => format!("{s}s"),
        60..3_600 => two(s / 60, "m", s % 60, "s"),
        3_600..86_400 => two(s / 3_600, "h", s % 3_600 / 60, "m"),
        _ => two(s / 86_400, "d", s % 86_400 / 3_600, "h"),
    }
}

fn two(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 {
        format!("{large}{large_unit}")
    } else {
        format!("{large}{large_unit}{small}{small_unit}")
    }
}

fn positive(text: &str, amount: u64) -> Result<u64, BadAmount> {
    match amount {
        0 => Err(BadAmount::Zero(text.to_owned())),
        _ if i64::try_from(amount).is_err() => Err(BadAmount::TooLarge(text.to_owned())),
        _ => Ok(amount),
    }
}

/// A decimal number times a factor, exactly, rounded up. `Err(None)` when it is
/// no number, `Err(Some)` when it is too large to count.
fn scaled(number: &str, factor: u64, text: &str) -> Result<u64, Option<BadAmount>> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || whole.is_empty() || fraction.len() > 9 {
        return Err(None);
    }
    if number.contains('.') && fraction.is_empty() {
        return Err(None);
    }
    let too_large = || Some(BadAmount::TooLarge(text.to_owned()));
    if whole.len() > 18 {
        return Err(too_large());
    }
    let scale = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| None)?);
    let mut value = whole.parse::<u128>().map_err(|_| None)? * scale;
    if !fraction.is_empty() {
        value += fraction.parse::<u128>().map_err(|_| None)?;
    }
    u64::try_from((value * u128::from(factor)).div_ceil(scale)).map_err(|_| too_large())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_cpu() {
        assert_eq!(cpu_millis("500m"), Ok(500));
        assert_eq!(cpu_millis("2"), Ok(2_000));
        assert_eq!(cpu_millis("0.0005"), Ok(1));
        for bad in ["", "m", "-1", "1.", ".5", "1e3", "1x", "1 ", "+1"] {
            assert_eq!(cpu_millis(bad), Err(BadAmount::Cpu(bad.to_owned())));
        }
        assert_eq!(cpu_millis("0"), Err(BadAmount::Zero("0".to_owned())));
    }

    #[test]
    fn reads_memory_and_wants_a_unit() {
        assert_eq!(memory_bytes("1Gi"), Ok(1 << 30));
        assert_eq!(memory_bytes("1.5Gi"), Ok(3 << 29));
        assert_eq!(memory_bytes("1G"), Ok(1_000_000_000));
        for bad in ["", "1X", "512", "Gi", "-1Gi", "1gi", "1Gib", "1e3Mi"] {
            assert_eq!(memory_bytes(bad), Err(BadAmount::Memory(bad.to_owned())));
        }
        let endless = format!("{}Ti", "9".repeat(30));
        assert_eq!(memory_bytes(&endless), Err(BadAmount::TooLarge(endless.clone())));
        assert_eq!(memory_bytes("99999999Ti"), Err(BadAmount::TooLarge("99999999Ti".to_owned())));
        assert_eq!(memory_bytes("9000000Ti"), Err(BadAmount::TooLarge("9000000Ti".to_owned())));
    }

    #[test]
    fn reads_durations_with_bare_numbers_as_seconds() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1.5h"), Ok(Duration::from_secs(5_400)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert!(duration("10 minutes").is_err());
        assert!(duration("-1").is_err());
    }

    #[test]
    fn shows_amounts() {
        assert_eq!(show_memory(3 << 29), "1.5Gi");
        assert_eq!(show_memory(1 << 30), "1Gi");
        assert_eq!(show_memory(12), "12B");
        assert_eq!(show_cpu(1_500), "1500m");
        assert_eq!(show_cpu(2_000), "2");
        assert_eq!(show_duration(Duration::from_secs(200)), "3m20s");
        assert_eq!(show_duration(Duration::from_secs(7_200)), "2h");
    }
}
