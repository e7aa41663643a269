//! `DEVICE,sector=4096`: what is said of a device behind its name.

/// Takes options, `key=value` or `key`, from the end of a text while they are `known`; a device may have commas of its
/// own. What is left is the device. The options come in the order of the text; `value` is empty where there is no `=`.
pub fn split_options<'a>(text: &'a str, known: &[&str]) -> (&'a str, Vec<(&'a str, &'a str)>) {
    let (mut device, mut options) = (text, Vec::new());
    while let Some((rest, option)) = device.rsplit_once(',') {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        if !known.contains(&key) {
            break;
        }
        options.push((key, value));
        device = rest;
    }
    options.reverse();
    (device, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_from_the_end_while_they_are_known() {
        let known = ["sector", "read-only"];
        assert_eq!(split_options("ram:1G", &known), ("ram:1G", vec![]));
        assert_eq!(
            split_options("fault:read=0.1,seed=7:/a,b,sector=4096,read-only", &known),
            ("fault:read=0.1,seed=7:/a,b", vec![("sector", "4096"), ("read-only", "")])
        );
        assert_eq!(split_options("a,sector=1,b", &known), ("a,sector=1,b", vec![]));
    }
}
