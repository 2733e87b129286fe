CREATE TABLE alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE attempt (
    id bigint NOT NULL,
    experiment_id bigint NOT NULL,
    task bigint NOT NULL,
    number integer NOT NULL,
    reason text,
    message text DEFAULT ''::text NOT NULL,
    opened_at double precision NOT NULL,
    started_at double precision,
    ended_at double precision,
    restored integer,
    members text
);
CREATE SEQUENCE attempt_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE attempt_id_seq OWNED BY attempt.id;
CREATE TABLE audit (
    id bigint NOT NULL,
    at double precision NOT NULL,
    name text NOT NULL,
    team text,
    address text NOT NULL,
    action text NOT NULL,
    status integer NOT NULL
);
CREATE SEQUENCE audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE audit_id_seq OWNED BY audit.id;
CREATE TABLE cluster (
    id text NOT NULL,
    run_id text NOT NULL,
    provider text NOT NULL,
    home_id text NOT NULL,
    state text NOT NULL,
    kept_until double precision,
    waited_s double precision,
    data text NOT NULL,
    changed_at double precision NOT NULL
);
CREATE TABLE event (
    id bigint NOT NULL,
    run_id text NOT NULL,
    experiment text,
    task bigint,
    attempt integer,
    at double precision NOT NULL,
    kind text NOT NULL,
    before text,
    after text,
    reason text,
    message text DEFAULT ''::text NOT NULL
);
CREATE SEQUENCE event_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE event_id_seq OWNED BY event.id;
CREATE TABLE experiment (
    id bigint NOT NULL,
    run_id text NOT NULL,
    ordinal integer NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    reason text,
    message text DEFAULT ''::text NOT NULL,
    tasks_total bigint NOT NULL,
    rest_reason text
);
CREATE SEQUENCE experiment_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE experiment_id_seq OWNED BY experiment.id;
CREATE TABLE measurement (
    id text NOT NULL,
    fingerprint text NOT NULL,
    "similar" text NOT NULL,
    experiment text NOT NULL,
    run_id text,
    data text NOT NULL,
    measured_at double precision NOT NULL
);
CREATE TABLE outbox (
    id bigint NOT NULL,
    run_id text NOT NULL,
    event_id bigint NOT NULL,
    subscription integer NOT NULL,
    tries integer DEFAULT 0 NOT NULL
);
CREATE SEQUENCE outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE outbox_id_seq OWNED BY outbox.id;
CREATE TABLE quote (
    id bigint NOT NULL,
    run_id text NOT NULL,
    experiment text,
    kind text NOT NULL,
    made_at double precision NOT NULL,
    data text NOT NULL,
    time_s double precision,
    cost_usd double precision,
    kept boolean
);
CREATE SEQUENCE quote_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE quote_id_seq OWNED BY quote.id;
CREATE TABLE run (
    id text NOT NULL,
    name text NOT NULL,
    recipe text NOT NULL,
    recipe_path text NOT NULL,
    provider text NOT NULL,
    code_path text NOT NULL,
    store_url text NOT NULL,
    state text NOT NULL,
    reason text,
    message text DEFAULT ''::text NOT NULL,
    created_at double precision NOT NULL,
    session_at double precision,
    ended_at double precision,
    closed_at double precision,
    earlier_s double precision DEFAULT '0'::double precision NOT NULL,
    queued_at double precision,
    queued_for text,
    queued_s double precision DEFAULT '0'::double precision NOT NULL,
    cost_usd double precision DEFAULT '0'::double precision NOT NULL,
    stop_wanted text,
    lease_owner text,
    lease_token integer DEFAULT 0 NOT NULL,
    lease_expires_at double precision,
    turn bigint DEFAULT '0'::bigint NOT NULL,
    home text DEFAULT ''::text NOT NULL,
    home_id text DEFAULT ''::text NOT NULL,
    notify text,
    team text,
    submitted_by text
);
CREATE TABLE submission (
    caller text NOT NULL,
    key text NOT NULL,
    digest text NOT NULL,
    run_id text NOT NULL,
    created_at double precision NOT NULL
);
CREATE TABLE task (
    id bigint NOT NULL,
    experiment_id bigint NOT NULL,
    number bigint NOT NULL,
    state text NOT NULL,
    reason text,
    message text DEFAULT ''::text NOT NULL,
    parameters text DEFAULT '{}'::text NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    retries_used integer DEFAULT 0 NOT NULL,
    free_restarts integer DEFAULT 0 NOT NULL,
    not_before double precision DEFAULT '0'::double precision NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    try_at double precision DEFAULT '0'::double precision NOT NULL,
    saving_usd double precision DEFAULT '0'::double precision NOT NULL,
    kept_model integer,
    kept_checkpoint integer,
    end_reason text,
    parent bigint,
    restored integer,
    bad_checkpoints text DEFAULT '[]'::text NOT NULL,
    metrics text DEFAULT '{}'::text NOT NULL,
    model_uri text,
    started_at double precision,
    ended_at double precision
);
CREATE SEQUENCE task_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE task_id_seq OWNED BY task.id;
CREATE TABLE team (
    name text NOT NULL,
    monthly_usd double precision,
    created_at double precision NOT NULL
);
CREATE TABLE token (
    name text NOT NULL,
    digest text NOT NULL,
    beginning text NOT NULL,
    team text,
    scopes text NOT NULL,
    created_at double precision NOT NULL,
    expires_at double precision NOT NULL,
    used_at double precision,
    revoked_at double precision
);
CREATE TABLE web_session (
    digest text NOT NULL,
    name text NOT NULL,
    team text,
    scopes text NOT NULL,
    token text,
    expires_at double precision NOT NULL
);
ALTER TABLE ONLY attempt ALTER COLUMN id SET DEFAULT nextval('attempt_id_seq'::regclass);
ALTER TABLE ONLY audit ALTER COLUMN id SET DEFAULT nextval('audit_id_seq'::regclass);
ALTER TABLE ONLY event ALTER COLUMN id SET DEFAULT nextval('event_id_seq'::regclass);
ALTER TABLE ONLY experiment ALTER COLUMN id SET DEFAULT nextval('experiment_id_seq'::regclass);
ALTER TABLE ONLY outbox ALTER COLUMN id SET DEFAULT nextval('outbox_id_seq'::regclass);
ALTER TABLE ONLY quote ALTER COLUMN id SET DEFAULT nextval('quote_id_seq'::regclass);
ALTER TABLE ONLY task ALTER COLUMN id SET DEFAULT nextval('task_id_seq'::regclass);
INSERT INTO alembic_version VALUES ('0007');
INSERT INTO attempt VALUES (2, 1, 1, 1, NULL, '', 1000000, NULL, NULL, NULL, NULL);
INSERT INTO attempt VALUES (1, 1, 0, 1, 'SUCCEEDED', 'so', 1000000, 1000000, 1000005, NULL, '[]');
INSERT INTO cluster VALUES ('r-1.a', 'r-1', 'lab', 'h', 'ACTIVE', NULL, 9.5, '{"asked": 1}', 1000000);
INSERT INTO event VALUES (1, 'r-1', NULL, NULL, NULL, 1000000, 'run', NULL, 'WAITING', NULL, '');
INSERT INTO event VALUES (2, 'r-1', NULL, NULL, NULL, 1000000, 'run', 'WAITING', 'RUNNING', NULL, '');
INSERT INTO event VALUES (3, 'r-1', 'a', 0, 0, 1000000, 'task', 'WAITING', 'PLANNED', NULL, '');
INSERT INTO event VALUES (4, 'r-1', 'a', 0, 1, 1000000, 'task', 'PLANNED', 'ACQUIRING', NULL, '');
INSERT INTO event VALUES (5, 'r-1', 'a', 1, 0, 1000000, 'task', 'WAITING', 'PLANNED', NULL, '');
INSERT INTO event VALUES (6, 'r-1', 'a', 1, 1, 1000000, 'task', 'PLANNED', 'ACQUIRING', NULL, '');
INSERT INTO event VALUES (7, 'r-1', 'a', 0, 1, 1000000, 'task', 'SAVING', 'DONE', 'SUCCEEDED', 'so');
INSERT INTO experiment VALUES (1, 'r-1', 0, 'a', 'WAITING', NULL, '', 3, NULL);
INSERT INTO experiment VALUES (2, 'r-1', 1, 'b', 'WAITING', NULL, '', 1, NULL);
INSERT INTO measurement VALUES ('r-1/a/0/1', 'f', 's', 'a', 'r-1', '{"duration_s": 5}', 1000000);
INSERT INTO quote VALUES (1, 'r-1', NULL, 'estimate', 1000000, '{"p95": 7}', 6, 0, true);
INSERT INTO quote VALUES (2, 'r-1', 'a', 'binding', 1000001, '{}', NULL, NULL, NULL);
INSERT INTO run VALUES ('r-1', 'r', '{}', '/recipe.yaml', 'local', '/code', 'file:///store', 'RUNNING', NULL, '', 1000000, 1000000, NULL, NULL, 0, NULL, NULL, 0, 0, NULL, NULL, 1, 1795315524.4838269, 2, '', '', NULL, NULL, NULL);
INSERT INTO task VALUES (2, 1, 1, 'ACQUIRING', NULL, '', '{}', 1, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, '[]', '{}', NULL, NULL, NULL);
INSERT INTO task VALUES (1, 1, 0, 'DONE', 'SUCCEEDED', 'so', '{}', 1, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, '[]', '{"loss":0.5}', 'file:///store/m', NULL, NULL);
SELECT pg_catalog.setval('attempt_id_seq', 2, true);
SELECT pg_catalog.setval('audit_id_seq', 1, false);
SELECT pg_catalog.setval('event_id_seq', 7, true);
SELECT pg_catalog.setval('experiment_id_seq', 2, true);
SELECT pg_catalog.setval('outbox_id_seq', 1, false);
SELECT pg_catalog.setval('quote_id_seq', 2, true);
SELECT pg_catalog.setval('task_id_seq', 2, true);
ALTER TABLE ONLY alembic_version
    ADD CONSTRAINT alembic_version_pkey PRIMARY KEY (version_num);
ALTER TABLE ONLY attempt
    ADD CONSTRAINT pk_attempt PRIMARY KEY (id);
ALTER TABLE ONLY audit
    ADD CONSTRAINT pk_audit PRIMARY KEY (id);
ALTER TABLE ONLY cluster
    ADD CONSTRAINT pk_cluster PRIMARY KEY (id);
ALTER TABLE ONLY event
    ADD CONSTRAINT pk_event PRIMARY KEY (id);
ALTER TABLE ONLY experiment
    ADD CONSTRAINT pk_experiment PRIMARY KEY (id);
ALTER TABLE ONLY measurement
    ADD CONSTRAINT pk_measurement PRIMARY KEY (id);
ALTER TABLE ONLY outbox
    ADD CONSTRAINT pk_outbox PRIMARY KEY (id);
ALTER TABLE ONLY quote
    ADD CONSTRAINT pk_quote PRIMARY KEY (id);
ALTER TABLE ONLY run
    ADD CONSTRAINT pk_run PRIMARY KEY (id);
ALTER TABLE ONLY submission
    ADD CONSTRAINT pk_submission PRIMARY KEY (caller, key);
ALTER TABLE ONLY task
    ADD CONSTRAINT pk_task PRIMARY KEY (id);
ALTER TABLE ONLY team
    ADD CONSTRAINT pk_team PRIMARY KEY (name);
ALTER TABLE ONLY token
    ADD CONSTRAINT pk_token PRIMARY KEY (name);
ALTER TABLE ONLY web_session
    ADD CONSTRAINT pk_web_session PRIMARY KEY (digest);
ALTER TABLE ONLY attempt
    ADD CONSTRAINT uq_attempt_experiment_id_task_number UNIQUE (experiment_id, task, number);
ALTER TABLE ONLY experiment
    ADD CONSTRAINT uq_experiment_run_id_name UNIQUE (run_id, name);
ALTER TABLE ONLY outbox
    ADD CONSTRAINT uq_outbox_event_id_subscription UNIQUE (event_id, subscription);
ALTER TABLE ONLY task
    ADD CONSTRAINT uq_task_experiment_id_number UNIQUE (experiment_id, number);
ALTER TABLE ONLY token
    ADD CONSTRAINT uq_token_digest UNIQUE (digest);
CREATE INDEX ix_audit_at ON audit USING btree (at);
CREATE INDEX ix_cluster_run_id ON cluster USING btree (run_id);
CREATE INDEX ix_event_run_id_id ON event USING btree (run_id, id);
CREATE INDEX ix_measurement_fingerprint_measured_at ON measurement USING btree (fingerprint, measured_at);
CREATE INDEX ix_measurement_similar_measured_at ON measurement USING btree ("similar", measured_at);
CREATE INDEX ix_outbox_run_id ON outbox USING btree (run_id);
CREATE INDEX ix_quote_run_id_id ON quote USING btree (run_id, id);
CREATE INDEX ix_run_created_at ON run USING btree (created_at);
CREATE INDEX ix_run_team_created_at ON run USING btree (team, created_at);
CREATE INDEX ix_task_experiment_id_state_reason ON task USING btree (experiment_id, state, reason);
CREATE INDEX ix_task_kept ON task USING btree (experiment_id, number);
CREATE INDEX ix_task_model ON task USING btree (experiment_id, number);
ALTER TABLE ONLY attempt
    ADD CONSTRAINT fk_attempt_experiment_id FOREIGN KEY (experiment_id) REFERENCES experiment(id);
ALTER TABLE ONLY cluster
    ADD CONSTRAINT fk_cluster_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY experiment
    ADD CONSTRAINT fk_experiment_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY outbox
    ADD CONSTRAINT fk_outbox_event_id FOREIGN KEY (event_id) REFERENCES event(id);
ALTER TABLE ONLY outbox
    ADD CONSTRAINT fk_outbox_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY quote
    ADD CONSTRAINT fk_quote_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY submission
    ADD CONSTRAINT fk_submission_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY task
    ADD CONSTRAINT fk_task_experiment_id FOREIGN KEY (experiment_id) REFERENCES experiment(id);
ALTER TABLE ONLY token
    ADD CONSTRAINT fk_token_team FOREIGN KEY (team) REFERENCES team(name);
ALTER TABLE ONLY web_session
    ADD CONSTRAINT fk_web_session_team FOREIGN KEY (team) REFERENCES team(name);
