"""A database that refuses some events."""

from __future__ import annotations

from app.outbox.engine.database import Database

# Each refuses rows by an error that is not about a value's type or length: MySQL's for a row that is
# too large, PostgreSQL's for a limit of the program, SQLite's for a constraint.
TRIGGERS = {
    "sqlite": """
        CREATE TRIGGER refuse BEFORE INSERT ON {table} WHEN NEW.{column} = {value}
        BEGIN SELECT RAISE(ABORT, 'it is refused'); END
    """,
    "postgresql": """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.{column} = {value} THEN
        RAISE EXCEPTION 'it is refused' USING ERRCODE = '54000'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()
    """,
    "mysql": """
        CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW BEGIN IF NEW.`{column}` = {value} THEN
        SIGNAL SQLSTATE '42000' SET MYSQL_ERRNO = 1118, MESSAGE_TEXT = 'it is refused'; END IF; END
    """,
}


def refuse_poison(database: Database, table: str = "events", column: str = "key", value: object = "'poison'") -> None:
    """Have the database refuse every event whose key is `poison`, or every row with this value."""
    with database.writing() as connection:
        statement = TRIGGERS[database.dialect].format(table=table, column=column, value=value)
        connection.exec_driver_sql(statement)
