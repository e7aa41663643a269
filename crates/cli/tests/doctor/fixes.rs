//! Fixes that are commands of lunway's own.

use std::collections::BTreeMap;

use lunway_doctor::RULES;

use crate::support::{lunway, succeed};

#[test]
fn every_command_of_lunway_in_a_fix_or_an_undo_exists_with_its_options() {
    let mut pages: BTreeMap<Vec<String>, String> = BTreeMap::new();
    let mut seen = 0;
    for rule in RULES.into_iter().flatten() {
        // Comments have commands, too.
        let texts = rule.fix.split(['#', ';']).chain(rule.undo.split(['#', ';']));
        for text in texts {
            let Some((_, command)) = text.split_once("lunway ") else { continue };
            let words: Vec<&str> = command.split_whitespace().collect();
            let is_word = |word: &&&str| {
                word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-')
            };
            let names: Vec<String> = words.iter().take_while(is_word).map(|&word| word.to_owned()).collect();
            if names.is_empty() {
                continue;
            }
            let page = pages.entry(names.clone()).or_insert_with(|| {
                let mut command = lunway(&names);
                command.arg("--help");
                succeed(command)
            });
            for option in words.iter().filter(|word| word.starts_with("--")) {
                assert!(page.contains(option), "{}: lunway {} has no {option}", rule.id, names.join(" "));
            }
            seen += 1;
        }
    }
    assert!(seen >= 10, "{seen} commands");
}
