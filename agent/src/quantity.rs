//! Kubernetes quantities: text such as `500m`, `1.5Gi` or `129e6`, read into
//! exact thousandths.
//!
//! [`crate::capacity`] reads every amount of a node or pod through this one
//! parser. It never uses a float, never wraps and never reads an amount as
//! less than was written: what is finer than a thousandth is rounded away
//! from zero.

use std::fmt;
use std::str::FromStr;

/// Why a quantity cannot be read or counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadQuantity {
    /// Text that does not begin with a decimal number.
    #[error("{0:?} is not a Kubernetes quantity; write a number such as 2, 0.5, 500m, 129e6 or 1.5Gi")]
    Malformed(String),
    /// A number followed by something that is no suffix.
    #[error("{text:?} has the unknown suffix {suffix:?}; use n u m k M G T P E, Ki to Ei, or an exponent")]
    Suffix {
        /// The whole text.
        text: String,
        /// What follows the number.
        suffix: String,
    },
    /// More than 64 bits can count.
    #[error("{0:?} is more than 64 bits can count; write at most {max}", max = i64::MAX)]
    TooLarge(String),
    /// Below zero, where an amount is held or offered.
    #[error("{0:?} is below zero; an amount of a node or pod is zero or more")]
    Negative(String),
}

/// A quantity in exact thousandths: milli-cores, milli-bytes, milli-cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    millis: i128,
}

impl Quantity {
    /// Thousandths of the unit, within the signed 64-bit range of whole units.
    #[must_use]
    pub const fn millis(self) -> i128 {
        self.millis
    }

    /// Whole units (bytes, cards, pods), rounded away from zero.
    #[must_use]
    pub fn units(self) -> i64 {
        whole_units(self.millis)
    }
}

/// CPU in thousandths of a core, rounded away from zero.
///
/// # Errors
/// When the text is no quantity or its thousandths do not fit 64 bits.
pub fn cpu_millis(text: &str) -> Result<i64, BadQuantity> {
    let quantity: Quantity = text.parse()?;
    i64::try_from(quantity.millis).map_err(|_| BadQuantity::TooLarge(text.to_owned()))
}

/// Memory in bytes, rounded away from zero.
///
/// # Errors
/// When the text is no quantity or does not fit 64 bits.
pub fn memory_bytes(text: &str) -> Result<i64, BadQuantity> {
    text.parse().map(Quantity::units)
}

impl FromStr for Quantity {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let number = Decimal::parse(number).ok_or_else(|| BadQuantity::Malformed(text.to_owned()))?;
        let scale = Scale::parse(suffix)
            .ok_or_else(|| BadQuantity::Suffix { text: text.to_owned(), suffix: suffix.to_owned() })?;
        let magnitude = match scale {
            Scale::Ten(exponent) => number
                .shifted(exponent)
                .times_rounded_up(1_000)
                .filter(|millis| *millis <= LARGEST_MILLIS)
                .ok_or_else(|| BadQuantity::TooLarge(text.to_owned()))?,
            // Kubernetes caps the binary notation, and only that one, at the 64-bit limit.
            Scale::Two(bits) => {
                number.times_rounded_up(1_000 << bits).unwrap_or(LARGEST_MILLIS).min(LARGEST_MILLIS)
            }
        };
        let magnitude = magnitude.cast_signed();
        Ok(Self { millis: if negative { -magnitude } else { magnitude } })
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.millis % 1_000 == 0 {
            write!(f, "{}", self.millis / 1_000)
        } else {
            write!(f, "{}m", self.millis)
        }
    }
}

/// Thousandths into whole units, rounded away from zero and held within 64
/// bits.
pub(crate) fn whole_units(millis: i128) -> i64 {
    let magnitude = i64::try_from(millis.unsigned_abs().div_ceil(1_000)).unwrap_or(i64::MAX);
    if millis < 0 { -magnitude } else { magnitude }
}

/// What a suffix multiplies by.
enum Scale {
    /// A power of ten.
    Ten(i64),
    /// A power of two, from `Ki` (10) to `Ei` (60).
    Two(u32),
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "n" => Self::Ten(-9),
            "u" => Self::Ten(-6),
            "m" => Self::Ten(-3),
            "" => Self::Ten(0),
            "k" => Self::Ten(3),
            "M" => Self::Ten(6),
            "G" => Self::Ten(9),
            "T" => Self::Ten(12),
            "P" => Self::Ten(15),
            "E" => Self::Ten(18),
            "Ki" => Self::Two(10),
            "Mi" => Self::Two(20),
            "Gi" => Self::Two(30),
            "Ti" => Self::Two(40),
            "Pi" => Self::Two(50),
            "Ei" => Self::Two(60),
            _ => Self::Ten(suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
        })
    }
}

/// An unsigned decimal number of any length.
struct Decimal {
    /// Its digits without leading zeros; none for zero.
    digits: Vec<u8>,
    /// How many of them stand before the point. Below zero: as many zeros
    /// follow the point; above their number: zeros are appended.
    point: i64,
}

impl Decimal {
    /// Reads ASCII digits with at most one point among or beside them.
    fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let length = whole.len() + fraction.len();
        if length == 0 || fraction.contains('.') {
            return None;
        }
        let digits: Vec<u8> =
            whole.bytes().chain(fraction.bytes()).map(|byte| byte - b'0').skip_while(|d| *d == 0).collect();
        let leading_zeros = i64::try_from(length - digits.len()).ok()?;
        Some(Self { digits, point: i64::try_from(whole.len()).ok()? - leading_zeros })
    }

    /// This number times ten to the power of `exponent`.
    fn shifted(mut self, exponent: i64) -> Self {
        self.point = self.point.saturating_add(exponent);
        self
    }

    /// This number times `factor`, rounded up to a whole number; none when
    /// that is far beyond 64 bits. The work is linear in the digits, whatever
    /// the exponent.
    fn times_rounded_up(&self, factor: u128) -> Option<u128> {
        if self.digits.is_empty() {
            return Some(0);
        }
        if self.point > MOST_WHOLE_DIGITS {
            return None;
        }
        let point = usize::try_from(self.point).unwrap_or(0);
        let (whole, fraction) = self.digits.split_at(point.min(self.digits.len()));
        let appended = std::iter::repeat_n(&0, point - whole.len());
        let whole = whole.iter().chain(appended).fold(0, |sum, digit| sum * 10 + u128::from(*digit));

        // The fraction times the factor, as by hand: from the last digit on,
        // carrying. What leaves on the right only decides the rounding.
        let inserted = usize::try_from(self.point.saturating_neg()).unwrap_or(0).min(ENOUGH_ZEROS);
        let inserted = std::iter::repeat_n(&0, inserted);
        let (carry, rest) = fraction.iter().rev().chain(inserted).fold((0, false), |(carry, rest), digit| {
            let product = u128::from(*digit) * factor + carry;
            (product / 10, rest || !product.is_multiple_of(10))
        });
        whole.checked_mul(factor)?.checked_add(carry)?.checked_add(u128::from(rest))
    }
}

/// The largest magnitude, in thousandths.
const LARGEST_MILLIS: u128 = i64::MAX.unsigned_abs() as u128 * 1_000;
/// A number without leading zeros and more whole digits is beyond 64 bits.
const MOST_WHOLE_DIGITS: i64 = 19;
/// After so many zeros behind the point any factor in use is carried out
/// completely, so more of them change nothing.
const ENOUGH_ZEROS: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_fraction_is_not_cut_before_it_is_scaled() {
        // Just above 1024: only the last of 60 digits says so.
        let text = format!("1.{}1Ki", "0".repeat(59));
        assert_eq!(memory_bytes(&text), Ok(1_025));
        let text = format!("0.{}1Ei", "0".repeat(5_000));
        assert_eq!(memory_bytes(&text), Ok(1));
    }

    #[test]
    fn leading_zeros_and_extreme_exponents_cost_nothing() {
        assert_eq!(memory_bytes(&format!("{}7", "0".repeat(5_000))), Ok(7));
        assert_eq!(memory_bytes("0e9223372036854775807"), Ok(0));
        assert_eq!(cpu_millis("1e-9223372036854775808"), Ok(1));
        assert_eq!(memory_bytes("0.0000000001e10"), Ok(1));
        assert_eq!(cpu_millis("-1e-30"), Ok(-1));
    }

    #[test]
    fn the_limit_is_reached_and_not_passed() {
        assert_eq!(memory_bytes("9223372036854775807"), Ok(i64::MAX));
        assert_eq!(memory_bytes("-9223372036854775807"), Ok(-i64::MAX));
        assert_eq!(memory_bytes("-9Ei"), Ok(-i64::MAX));
        let over = "9223372036854775807.0001";
        assert_eq!(memory_bytes(over), Err(BadQuantity::TooLarge(over.to_owned())));
        assert_eq!(cpu_millis("9223372036854775807m"), Ok(i64::MAX));
        assert!(cpu_millis("9223372036854775808m").is_err());
    }

    #[test]
    fn refusals_name_the_text_and_say_what_to_write() {
        let refusal = |text: &str| text.parse::<Quantity>().map_err(|e| e.to_string());
        let suffix = r#""16GB" has the unknown suffix "GB"; use n u m k M G T P E, Ki to Ei, or an exponent"#;
        assert_eq!(refusal("16GB"), Err(suffix.to_owned()));
        assert!(
            refusal("lots").is_err_and(|e| e.starts_with(r#""lots" is not a Kubernetes quantity; write"#))
        );
    }

    #[test]
    fn shows_whole_units_plainly_and_the_rest_in_thousandths() {
        let shown = |text: &str| text.parse::<Quantity>().map(|q| q.to_string());
        assert_eq!(shown("1.5Gi"), Ok("1610612736".to_owned()));
        assert_eq!(shown("2.0005"), Ok("2001m".to_owned()));
        assert_eq!(shown("-0.1"), Ok("-100m".to_owned()));
    }
}
