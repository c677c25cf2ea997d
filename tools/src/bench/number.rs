//! Numbers as C's printf shows them, so that rows are nccl-tests' to the character.

/// nccl-tests' `getFloatStr`: two decimals, fewer as the number grows, then an exponent. At least `width` characters.
pub fn float(value: f64, width: usize) -> String {
    let mut power = 0;
    let mut bound = 1f64;
    while value >= bound && power < 20 {
        power += 1;
        bound *= 10.0;
    }
    if power + 2 < width {
        format!("{value:width$.2}")
    } else if power + 1 < width {
        format!("{value:width$.1}")
    } else if power < width + 1 {
        format!("{value:width$.0}")
    } else {
        format!("{:>width$}", exponent(value, usize::from(width >= 7)))
    }
}

/// `%g`: six significant digits, no trailing zeros.
pub fn general(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { value.to_string().to_lowercase() };
    }
    let scientific = format!("{value:.5e}");
    let power: i32 = scientific.split_once('e').and_then(|(_, p)| p.parse().ok()).unwrap_or(0);
    if (-4..6).contains(&power) {
        let fixed = format!("{value:.*}", (5 - power) as usize);
        return trim(&fixed).into();
    }
    let (digits, _) = scientific.split_once('e').unwrap_or((&scientific, ""));
    format!("{}{}", trim(digits), power_of_ten(power))
}

fn trim(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

/// `%.{decimals}e`.
fn exponent(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{digits}{}", power_of_ten(power.parse().unwrap_or(0)))
}

fn power_of_ten(power: i32) -> String {
    format!("e{}{:02}", if power < 0 { '-' } else { '+' }, power.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_lose_decimals_as_they_grow() {
        // From printf, by nccl-tests' rules for a width of 7.
        for (value, text) in [
            (0.0, "   0.00"),
            (11.87, "  11.87"),
            (9999.99, "9999.99"),
            (10000.0, "10000.0"),
            (99999.9, "99999.9"),
            (100000.0, " 100000"),
            (1234567.0, "1234567"),
            (12345678.0, "1.2e+07"),
        ] {
            assert_eq!(float(value, 7), text);
        }
        for (value, text) in [
            (0.0, "  0.00"),
            (123.456, "123.46"),
            (1234.5, "1234.5"),
            (12345.0, " 12345"),
            (1234567.0, " 1e+06"),
        ] {
            assert_eq!(float(value, 6), text);
        }
    }

    #[test]
    fn general_is_percent_g() {
        for (value, text) in [
            (2.345978, "2.34598"),
            (0.0, "0"),
            (1.0, "1"),
            (123456.0, "123456"),
            (1234567.0, "1.23457e+06"),
            (0.0001, "0.0001"),
            (0.00001234, "1.234e-05"),
            (100.0, "100"),
            (999999.5, "1e+06"),
            (0.5, "0.5"),
        ] {
            assert_eq!(general(value), text);
        }
    }
}
