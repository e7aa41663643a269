//! The few marks inside a text.

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span<'a> {
    /// As it is.
    Plain(&'a str),
    /// Code: a key, a value, a command.
    Code(&'a str),
}

/// The parts of a text: `` `code` ``, links as their texts, and what is between them. A mark that is not closed is
/// text.
pub fn spans(text: &str) -> Vec<Span<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '[']) {
        let (before, marked) = rest.split_at(at);
        let span = if marked.starts_with('`') { code(marked) } else { link(marked) };
        let Some((span, behind)) = span else { break };
        found.extend((!before.is_empty()).then_some(Span::Plain(before)));
        found.push(span);
        rest = behind;
    }
    found.extend((!rest.is_empty()).then_some(Span::Plain(rest)));
    found
}

fn code(text: &str) -> Option<(Span<'_>, &str)> {
    text.strip_prefix('`')?.split_once('`').map(|(code, behind)| (Span::Code(code), behind))
}

/// `[text](place)` as its text; brackets without a place are text.
fn link(text: &str) -> Option<(Span<'_>, &str)> {
    let (name, behind) = text.strip_prefix('[')?.split_once(']')?;
    match behind.strip_prefix('(').and_then(|place| place.split_once(')')) {
        Some((_, behind)) => Some((Span::Plain(name), behind)),
        None => Some((Span::Plain(&text[..name.len() + 2]), behind)),
    }
}

/// Links to items of the source (``[`Config::listen`]``, with or without a place) as the item's own name, in code.
pub(crate) fn without_rustdoc_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("[`") {
        let Some((name, behind)) = link.split_once("`]") else { break };
        plain += &format!("{before}`{}`", name.rsplit("::").next().unwrap_or(name));
        let place = behind.strip_prefix('(').and_then(|place| place.split_once(')'));
        rest = place.map_or(behind, |(_, behind)| behind);
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_links_are_found() {
        for (text, expected) in [
            ("plain", &[Span::Plain("plain")][..]),
            ("a `b` c", &[Span::Plain("a "), Span::Code("b"), Span::Plain(" c")]),
            ("[Config](#config)", &[Span::Plain("Config")]),
            ("[::]:3260 `x`", &[Span::Plain("[::]"), Span::Plain(":3260 "), Span::Code("x")]),
            ("it`s", &[Span::Plain("it`s")]),
            ("", &[]),
        ] {
            assert_eq!(spans(text), expected, "{text}");
        }
    }

    #[test]
    fn a_link_to_the_source_is_the_name_of_the_item() {
        let text = "group of [`Config::listen`]; see [`Server`](crate::Server) and `x`";
        assert_eq!(without_rustdoc_links(text), "group of `listen`; see `Server` and `x`");
    }
}
