//! Percentages as people write them: `3`, `1.5`, `70%`.

/// Reads a percentage from 0 to 100, with or without its sign.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    match number.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        Ok(_) => Err("it is from 0 to 100".to_owned()),
        Err(_) => Err(format!("`{text}` is not a percentage: write 3, 1.5 or 70%")),
    }
}

/// Reads a whole percentage.
pub(crate) fn whole(text: &str) -> Result<u8, String> {
    let percent = percent(text)?;
    if percent.fract() == 0.0 { Ok(percent as u8) } else { Err("a whole number is expected".to_owned()) }
}

/// Reads the largest difference that counts as none: less than 100.
pub(crate) fn margin(text: &str) -> Result<f64, String> {
    let percent = percent(text)?;
    if percent < 100.0 { Ok(percent) } else { Err("a margin is from 0 to less than 100".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_may_have_its_sign_and_is_never_without_bounds() {
        assert_eq!((percent("3"), percent("1.5%"), percent("100 %")), (Ok(3.0), Ok(1.5), Ok(100.0)));
        assert_eq!((whole("70%"), margin("0")), (Ok(70), Ok(0.0)));
        for wrong in ["", "%", "x", "nan", "inf", "-1", "101", "5%%"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
        assert!(whole("1.5").is_err() && margin("100").is_err());
    }
}
