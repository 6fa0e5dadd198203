//! `--[no-]collector.NAME`: a pair of flags for each host collector, made from its name.

use clap::builder::BoolishValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::host::NAMES;

/// Names of the collectors that run: all of them unless told otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collectors(pub Vec<&'static str>);

fn on(name: &str) -> String {
    format!("collector.{name}")
}

fn off(name: &str) -> String {
    format!("no-collector.{name}")
}

fn flag(name: String, opposite: String) -> Arg {
    Arg::new(name.clone())
        .long(name)
        .overrides_with(opposite)
        .action(ArgAction::SetTrue)
        .global(true)
        .value_parser(BoolishValueParser::new())
}

impl Args for Collectors {
    fn augment_args(command: Command) -> Command {
        NAMES.iter().fold(command, |command, name| {
            command
                .arg(flag(off(name), on(name)).help(format!("Leave out the {name} collector")))
                .arg(flag(on(name), off(name)).hide(true))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Collectors::augment_args(command)
    }
}

impl FromArgMatches for Collectors {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Collectors, clap::Error> {
        Ok(Collectors(NAMES.into_iter().filter(|name| runs(matches, name)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Collectors::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The command line wins over the environment; within each, "no" wins where both were said.
fn runs(matches: &ArgMatches, name: &str) -> bool {
    let said = |flag: &str, by| (matches.value_source(flag) == Some(by)).then(|| matches.get_flag(flag));
    [ValueSource::CommandLine, ValueSource::EnvVariable]
        .into_iter()
        .find_map(|by| said(&off(name), by).filter(|off| *off).map(|_| false).or_else(|| said(&on(name), by)))
        .unwrap_or(true)
}
