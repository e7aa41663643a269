//! Secrets in arguments, kept out of messages about these arguments.

use std::env;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use lunway_block::spec::IscsiUrlText;

use crate::terminal;

const SCHEME: &str = "iscsi://";

/// Placeholder of a secret in an address.
const STARS: &str = "***";

/// Prints what is wrong with the command line, or the help that was asked for.
pub(crate) fn print_usage_error(error: &clap::Error) -> ExitCode {
    let code = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    let text = error.render();
    if error.use_stderr() {
        let colour = io::stderr().is_terminal() && terminal::colour_wanted();
        let text = if colour { text.ansi().to_string() } else { text.to_string() };
        eprint!("{}", with_expected_form(&without_arguments_secrets(&text)));
        return code;
    }
    let colour = io::stdout().is_terminal() && terminal::colour_wanted();
    let text = if colour { text.ansi().to_string() } else { text.to_string() };
    match terminal::print(text.trim_end()) {
        Ok(()) => code,
        Err(failure) => failure.report(),
    }
}

/// The standard library's words for a wrong number, replaced by the form that is expected.
fn with_expected_form(text: &str) -> String {
    [
        ("invalid digit found in string", "a whole number is expected"),
        ("cannot parse integer from empty string", "a whole number is expected"),
        ("number too large to fit in target type", "the number is too large"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (words, form)| text.replace(words, form))
}

/// Hides in a message what is secret in this process's arguments. Messages about wrong usage repeat arguments
/// (`unexpected argument '…' found`), and the author of such a message cannot know that an address was meant.
pub(crate) fn without_arguments_secrets(text: &str) -> String {
    let arguments = env::args_os().map(|word| word.to_string_lossy().into_owned());
    arguments.fold(text.to_owned(), |text, argument| without_secret_of(text, &argument))
}

fn without_secret_of(text: String, argument: &str) -> String {
    let Some(start) = argument.to_ascii_lowercase().find(SCHEME) else { return text };
    let rest = &argument[start + SCHEME.len()..];
    let Some(url) = IscsiUrlText::new(&format!("{SCHEME}{rest}")) else { return text };
    let shown = url.to_string();
    // What stands in the address where the stars are shown, each between the texts around it.
    let mut parts = shown[SCHEME.len()..].split(STARS);
    let (mut text, mut rest, mut before) = (text, rest, parts.next().unwrap_or_default());
    for after in parts {
        let Some(behind) = rest.get(before.len()..) else { break };
        let end = if after.is_empty() { behind.len() } else { behind.rfind(after).unwrap_or(behind.len()) };
        let (secret, tail) = behind.split_at(end);
        // With the sign before it, so that a secret such as `a` does not make stars of every `a`.
        let sign = &before[before.len().saturating_sub(1)..];
        if !secret.is_empty() {
            text = text.replace(&format!("{sign}{secret}"), &format!("{sign}{STARS}"));
        }
        (rest, before) = (tail, after);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_repeated_without_its_secret() {
        for (argument, text, shown) in [
            (
                "readonly:ISCSI://u%hunter2@h/iqn.a:b/0",
                "unexpected argument 'readonly:ISCSI://u%hunter2@h/iqn.a:b/0' found",
                "unexpected argument 'readonly:ISCSI://u%***@h/iqn.a:b/0' found",
            ),
            ("0=iscsi://u%hunter2@h/iqn.a:b/0,sector=7", "iscsi://u%hunter2@h: no", "iscsi://u%***@h: no"),
            (
                "iscsi://u%a@h/iqn.a:b/0?target_password=hunter2&target_user=t",
                "no iscsi://u%a@h/iqn.a:b/0?target_password=hunter2&target_user=t",
                "no iscsi://u%***@h/iqn.a:b/0?target_password=***&target_user=t",
            ),
            ("iscsi://h/iqn.a:b/0", "iscsi://h/iqn.a:b/0 is there", "iscsi://h/iqn.a:b/0 is there"),
            ("--lun", "--lun is there", "--lun is there"),
        ] {
            assert_eq!(without_secret_of(text.to_owned(), argument), shown);
        }
    }
}
