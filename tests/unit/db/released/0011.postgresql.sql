CREATE TABLE account (
    name text NOT NULL,
    kind text NOT NULL,
    team text,
    admin_by text,
    issuer text,
    subject text,
    created_at double precision NOT NULL,
    disabled_at double precision,
    groups_until double precision
);
CREATE TABLE admission (
    run_id text NOT NULL,
    priority integer NOT NULL,
    most_micro_usd bigint NOT NULL,
    usd_per_hour double precision NOT NULL,
    asked_at double precision NOT NULL,
    admitted_at double precision
);
CREATE TABLE alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE app (
    id text NOT NULL,
    kind text NOT NULL,
    team text,
    opened_by text NOT NULL,
    account text,
    runs text NOT NULL,
    run_id text,
    home_id text NOT NULL,
    place text,
    directory text,
    member text,
    state text NOT NULL,
    reason text,
    ends boolean DEFAULT false NOT NULL,
    port integer,
    owner text,
    expires_at double precision,
    created_at double precision NOT NULL,
    used_at double precision NOT NULL,
    ended_at double precision
);
CREATE TABLE app_pass (
    digest text NOT NULL,
    app_id text NOT NULL,
    is_ticket boolean NOT NULL,
    expires_at double precision NOT NULL,
    credential text,
    is_session boolean NOT NULL,
    team text
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
    status integer NOT NULL,
    token text,
    hash text DEFAULT ''::text NOT NULL
);
CREATE SEQUENCE audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE audit_id_seq OWNED BY audit.id;
CREATE TABLE audit_sink (
    target text NOT NULL,
    sent bigint DEFAULT '0'::bigint NOT NULL,
    sent_at double precision,
    trouble text DEFAULT ''::text NOT NULL,
    failures integer DEFAULT 0 NOT NULL,
    try_at double precision DEFAULT '0'::double precision NOT NULL,
    owner text,
    expires_at double precision
);
CREATE TABLE budget (
    team text NOT NULL,
    monthly_usd double precision,
    runs_at_once integer,
    usd_per_hour double precision,
    cpus_at_once integer
);
CREATE TABLE budget_warning (
    team text NOT NULL,
    month text NOT NULL,
    percent integer NOT NULL,
    at double precision NOT NULL
);
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
CREATE TABLE device_login (
    digest text NOT NULL,
    user_digest text NOT NULL,
    client text NOT NULL,
    expires_at double precision NOT NULL,
    confirmed text
);
CREATE TABLE endpoint (
    id text NOT NULL,
    team text,
    name text NOT NULL,
    place text,
    run_id text NOT NULL,
    experiment text NOT NULL,
    model text,
    version text,
    model_uri text,
    refused text,
    failures integer DEFAULT 0 NOT NULL,
    try_at double precision DEFAULT '0'::double precision NOT NULL,
    asked_at double precision,
    created_at double precision NOT NULL,
    ended_at double precision
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
    message text DEFAULT ''::text NOT NULL,
    topic text
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
CREATE TABLE invite (
    digest text NOT NULL,
    team text NOT NULL,
    role text NOT NULL,
    invited_by text,
    made_with text,
    created_at double precision NOT NULL,
    expires_at double precision NOT NULL,
    used_by text
);
CREATE TABLE ledger (
    id bigint NOT NULL,
    run_id text NOT NULL,
    team text NOT NULL,
    kind text NOT NULL,
    day text NOT NULL,
    micro_usd bigint NOT NULL,
    at double precision NOT NULL
);
CREATE SEQUENCE ledger_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE ledger_id_seq OWNED BY ledger.id;
CREATE TABLE login_attempt (
    id bigint NOT NULL,
    address text NOT NULL,
    at double precision NOT NULL
);
CREATE SEQUENCE login_attempt_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE login_attempt_id_seq OWNED BY login_attempt.id;
CREATE TABLE measurement (
    id text NOT NULL,
    fingerprint text NOT NULL,
    "similar" text NOT NULL,
    experiment text NOT NULL,
    run_id text,
    data text NOT NULL,
    measured_at double precision NOT NULL
);
CREATE TABLE member (
    team text NOT NULL,
    account text NOT NULL,
    role text NOT NULL,
    by_groups boolean NOT NULL
);
CREATE TABLE model_alias (
    team text NOT NULL,
    name text NOT NULL,
    alias text NOT NULL,
    version integer NOT NULL,
    moved_by text NOT NULL,
    moved_at double precision NOT NULL
);
CREATE TABLE model_move (
    id bigint NOT NULL,
    team text NOT NULL,
    name text NOT NULL,
    alias text NOT NULL,
    before integer,
    version integer,
    kind text NOT NULL,
    moved_by text NOT NULL,
    moved_at double precision NOT NULL,
    run_id text,
    experiment text
);
CREATE SEQUENCE model_move_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE model_move_id_seq OWNED BY model_move.id;
CREATE TABLE model_version (
    team text NOT NULL,
    name text NOT NULL,
    version integer NOT NULL,
    run_id text NOT NULL,
    experiment text NOT NULL,
    task bigint NOT NULL,
    uri text NOT NULL,
    tags text DEFAULT '{}'::text NOT NULL,
    created_by text NOT NULL,
    created_at double precision NOT NULL
);
CREATE TABLE notice (
    id text NOT NULL,
    webhook_id text NOT NULL,
    topic text NOT NULL,
    body text NOT NULL,
    at double precision NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    due_at double precision NOT NULL,
    done_at double precision,
    status text DEFAULT ''::text NOT NULL
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
CREATE TABLE quote_request (
    id text NOT NULL,
    kind text NOT NULL,
    team text NOT NULL,
    asked_by text NOT NULL,
    request text NOT NULL,
    state text NOT NULL,
    place integer,
    worker text,
    expires_at double precision,
    attempts integer NOT NULL,
    told text NOT NULL,
    progress text,
    answer text,
    error text,
    created_at double precision NOT NULL,
    ended_at double precision
);
CREATE TABLE registered_model (
    team text NOT NULL,
    name text NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    tags text DEFAULT '{}'::text NOT NULL,
    last_version integer DEFAULT 0 NOT NULL,
    created_at double precision NOT NULL
);
CREATE TABLE removed_model (
    run_id text NOT NULL,
    experiment text NOT NULL,
    task bigint NOT NULL,
    uri text NOT NULL,
    team text NOT NULL,
    name text NOT NULL,
    version integer NOT NULL,
    removed_at double precision NOT NULL
);
CREATE TABLE replica (
    id text NOT NULL,
    endpoint_id text NOT NULL,
    task bigint NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    version text,
    model_uri text,
    state text NOT NULL,
    node text,
    port integer,
    said text DEFAULT ''::text NOT NULL,
    created_at double precision NOT NULL,
    ready_at double precision,
    draining_since double precision,
    ended_at double precision
);
CREATE TABLE replica_load (
    replica_id text NOT NULL,
    server text NOT NULL,
    in_flight integer NOT NULL,
    at double precision NOT NULL
);
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
    submitted_by text,
    wallet text,
    can_move boolean DEFAULT false NOT NULL,
    kept_by text,
    labels text DEFAULT '{}'::text NOT NULL,
    note text DEFAULT ''::text NOT NULL,
    away text,
    removed_at double precision,
    trimmed_at double precision
);
CREATE TABLE run_fact (
    run_id text NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    value text NOT NULL
);
CREATE TABLE run_file (
    id bigint NOT NULL,
    run_id text NOT NULL,
    path text NOT NULL,
    "offset" bigint NOT NULL,
    data bytea NOT NULL
);
CREATE SEQUENCE run_file_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE run_file_id_seq OWNED BY run_file.id;
CREATE TABLE run_model (
    run_id text NOT NULL,
    experiment text NOT NULL,
    data text NOT NULL,
    team text NOT NULL,
    name text NOT NULL,
    version integer NOT NULL
);
CREATE TABLE run_private (
    run_id text NOT NULL,
    name text NOT NULL,
    sealed bytea NOT NULL
);
CREATE TABLE saved_view (
    whose text NOT NULL,
    name text NOT NULL,
    query text NOT NULL,
    changed_at double precision NOT NULL
);
CREATE TABLE sign_in (
    digest text NOT NULL,
    state text NOT NULL,
    nonce text NOT NULL,
    verifier text NOT NULL,
    wanted text NOT NULL,
    expires_at double precision NOT NULL
);
CREATE TABLE sink (
    run_id text NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    remote text,
    trouble text DEFAULT ''::text NOT NULL,
    failures integer DEFAULT 0 NOT NULL,
    try_at double precision DEFAULT '0'::double precision NOT NULL,
    owner text,
    expires_at double precision
);
CREATE TABLE sink_cursor (
    run_id text NOT NULL,
    kind text NOT NULL,
    experiment text NOT NULL,
    task bigint NOT NULL,
    attempt integer NOT NULL,
    remote text NOT NULL,
    reports bigint DEFAULT '0'::bigint NOT NULL,
    sending bigint DEFAULT '0'::bigint NOT NULL,
    sending_at double precision DEFAULT '0'::double precision NOT NULL,
    is_over boolean DEFAULT false NOT NULL
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
    created_at double precision NOT NULL
);
CREATE TABLE team_secret (
    team text NOT NULL,
    name text NOT NULL,
    sealed bytea NOT NULL,
    changed_by text NOT NULL,
    changed_at double precision NOT NULL
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
    revoked_at double precision,
    account text,
    made_with text,
    wallet text,
    at_most_usd double precision
);
CREATE TABLE upload (
    id text NOT NULL,
    team text,
    name text NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    size_bytes bigint NOT NULL,
    received_bytes bigint DEFAULT '0'::bigint NOT NULL,
    result text,
    claim integer DEFAULT 0 NOT NULL,
    claimed_until double precision,
    created_at double precision NOT NULL,
    used_at double precision NOT NULL
);
CREATE TABLE upload_part (
    upload_id text NOT NULL,
    "offset" bigint NOT NULL,
    size_bytes bigint NOT NULL,
    key text NOT NULL
);
CREATE TABLE volume_content (
    id text NOT NULL,
    described text NOT NULL
);
CREATE TABLE web_session (
    digest text NOT NULL,
    name text NOT NULL,
    team text,
    scopes text NOT NULL,
    token text,
    expires_at double precision NOT NULL,
    account text,
    created_at double precision DEFAULT '0'::double precision NOT NULL,
    address text DEFAULT ''::text NOT NULL
);
CREATE TABLE webhook (
    id text NOT NULL,
    team text NOT NULL,
    kind text NOT NULL,
    target text NOT NULL,
    topics text NOT NULL,
    secrets bytea NOT NULL,
    created_at double precision NOT NULL,
    disabled_at double precision,
    disabled_why text DEFAULT ''::text NOT NULL
);
CREATE TABLE workflow (
    id text NOT NULL,
    team text NOT NULL,
    name text NOT NULL,
    request text NOT NULL,
    concurrency text NOT NULL,
    pushes text NOT NULL,
    state text NOT NULL,
    revision integer NOT NULL,
    registered_by text NOT NULL,
    account text,
    token text,
    secret bytea,
    created_at double precision NOT NULL,
    changed_at double precision NOT NULL
);
CREATE TABLE workflow_firing (
    id bigint NOT NULL,
    workflow_id text NOT NULL,
    trigger text NOT NULL,
    cause text NOT NULL,
    at double precision NOT NULL,
    state text NOT NULL,
    run_id text,
    message text DEFAULT ''::text NOT NULL,
    chain text DEFAULT '[]'::text NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    due_at double precision NOT NULL
);
CREATE SEQUENCE workflow_firing_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE workflow_firing_id_seq OWNED BY workflow_firing.id;
CREATE TABLE workflow_trigger (
    workflow_id text NOT NULL,
    key text NOT NULL,
    ordinal integer NOT NULL,
    data text NOT NULL,
    seen double precision NOT NULL
);
ALTER TABLE ONLY attempt ALTER COLUMN id SET DEFAULT nextval('attempt_id_seq'::regclass);
ALTER TABLE ONLY audit ALTER COLUMN id SET DEFAULT nextval('audit_id_seq'::regclass);
ALTER TABLE ONLY event ALTER COLUMN id SET DEFAULT nextval('event_id_seq'::regclass);
ALTER TABLE ONLY experiment ALTER COLUMN id SET DEFAULT nextval('experiment_id_seq'::regclass);
ALTER TABLE ONLY ledger ALTER COLUMN id SET DEFAULT nextval('ledger_id_seq'::regclass);
ALTER TABLE ONLY login_attempt ALTER COLUMN id SET DEFAULT nextval('login_attempt_id_seq'::regclass);
ALTER TABLE ONLY model_move ALTER COLUMN id SET DEFAULT nextval('model_move_id_seq'::regclass);
ALTER TABLE ONLY outbox ALTER COLUMN id SET DEFAULT nextval('outbox_id_seq'::regclass);
ALTER TABLE ONLY quote ALTER COLUMN id SET DEFAULT nextval('quote_id_seq'::regclass);
ALTER TABLE ONLY run_file ALTER COLUMN id SET DEFAULT nextval('run_file_id_seq'::regclass);
ALTER TABLE ONLY task ALTER COLUMN id SET DEFAULT nextval('task_id_seq'::regclass);
ALTER TABLE ONLY workflow_firing ALTER COLUMN id SET DEFAULT nextval('workflow_firing_id_seq'::regclass);
INSERT INTO account VALUES ('{}', '{}', '{}', '{}', '{}', '{}', 1, 1, 1);
INSERT INTO admission VALUES ('r-1', 1, 1, 1, 1, 1);
INSERT INTO alembic_version VALUES ('0011');
INSERT INTO app VALUES ('{}', '{}', '{}', '{}', '{}', '{}', 'r-1', '{}', '{}', '{}', '{}', '{}', '{}', true, 1, '{}', 1, 1, 1, 1);
INSERT INTO app_pass VALUES ('{}', '{}', true, 1, '{}', true, '{}');
INSERT INTO attempt VALUES (2, 1, 1, 1, NULL, '', 1000000, NULL, NULL, NULL, NULL);
INSERT INTO attempt VALUES (1, 1, 0, 1, 'SUCCEEDED', 'so', 1000000, 1000000, 1000005, NULL, '[]');
INSERT INTO audit VALUES (1, 1, '{}', '{}', '{}', '{}', 1, '{}', '{}');
INSERT INTO audit_sink VALUES ('{}', 1, 1, '{}', 1, 1, '{}', 1);
INSERT INTO budget VALUES ('{}', 1, 1, 1, 1);
INSERT INTO budget_warning VALUES ('{}', '{}', 1, 1);
INSERT INTO cluster VALUES ('r-1.a', 'r-1', 'lab', 'h', 'ACTIVE', NULL, 9.5, '{"asked": 1}', 1000000);
INSERT INTO device_login VALUES ('{}', '{}', '{}', 1, '{}');
INSERT INTO endpoint VALUES ('{}', '{}', '{}', '{}', 'r-1', '{}', '{}', '{}', '{}', '{}', 1, 1, 1, 1, 1);
INSERT INTO event VALUES (1, 'r-1', NULL, NULL, NULL, 1000000, 'run', NULL, 'WAITING', NULL, '', NULL);
INSERT INTO event VALUES (2, 'r-1', NULL, NULL, NULL, 1000000, 'run', 'WAITING', 'RUNNING', NULL, '', 'run.started');
INSERT INTO event VALUES (3, 'r-1', 'a', 0, 0, 1000000, 'task', 'WAITING', 'PLANNED', NULL, '', NULL);
INSERT INTO event VALUES (4, 'r-1', 'a', 0, 1, 1000000, 'task', 'PLANNED', 'ACQUIRING', NULL, '', NULL);
INSERT INTO event VALUES (5, 'r-1', 'a', 1, 0, 1000000, 'task', 'WAITING', 'PLANNED', NULL, '', NULL);
INSERT INTO event VALUES (6, 'r-1', 'a', 1, 1, 1000000, 'task', 'PLANNED', 'ACQUIRING', NULL, '', NULL);
INSERT INTO event VALUES (7, 'r-1', 'a', 0, 1, 1000000, 'task', 'SAVING', 'DONE', 'SUCCEEDED', 'so', NULL);
INSERT INTO experiment VALUES (1, 'r-1', 0, 'a', 'WAITING', NULL, '', 3, NULL);
INSERT INTO experiment VALUES (2, 'r-1', 1, 'b', 'WAITING', NULL, '', 1, NULL);
INSERT INTO invite VALUES ('{}', '{}', '{}', '{}', '{}', 1, 1, '{}');
INSERT INTO ledger VALUES (1, 'r-1', '{}', '{}', '{}', 1, 1);
INSERT INTO login_attempt VALUES (1, '{}', 1);
INSERT INTO measurement VALUES ('r-1/a/0/1', 'f', 's', 'a', 'r-1', '{"duration_s": 5}', 1000000);
INSERT INTO member VALUES ('{}', '{}', '{}', true);
INSERT INTO model_alias VALUES ('{}', '{}', '{}', 1, '{}', 1);
INSERT INTO model_move VALUES (1, '{}', '{}', '{}', 1, 1, '{}', '{}', 1, '{}', '{}');
INSERT INTO model_version VALUES ('{}', '{}', 1, 'r-1', '{}', 1, '{}', '{}', '{}', 1);
INSERT INTO notice VALUES ('{}', '{}', '{}', '{}', 1, 1, 1, 1, '{}');
INSERT INTO outbox VALUES (1, 'r-1', 1, 1, 1);
INSERT INTO quote VALUES (1, 'r-1', NULL, 'estimate', 1000000, '{"p95": 7}', 6, 0, true);
INSERT INTO quote VALUES (2, 'r-1', 'a', 'binding', 1000001, '{}', NULL, NULL, NULL);
INSERT INTO quote_request VALUES ('{}', '{}', '{}', '{}', '{}', '{}', 1, '{}', 1, 1, '{}', '{}', '{}', '{}', 1, 1);
INSERT INTO registered_model VALUES ('{}', '{}', '{}', '{}', 1, 1);
INSERT INTO removed_model VALUES ('r-1', '{}', 1, '{}', '{}', '{}', 1, 1);
INSERT INTO replica VALUES ('{}', '{}', 1, 1, '{}', '{}', '{}', '{}', 1, '{}', 1, 1, 1, 1);
INSERT INTO replica_load VALUES ('{}', '{}', 1, 1);
INSERT INTO run VALUES ('r-1', 'r', '{}', '/recipe.yaml', 'local', '/code', 'file:///store', 'RUNNING', NULL, '', 1000000, 1000000, NULL, NULL, 0, NULL, NULL, 0, 0, NULL, NULL, 1, 1795706762.1138983, 2, '', '', NULL, NULL, NULL, NULL, false, NULL, '{}', '', NULL, NULL, NULL);
INSERT INTO run_fact VALUES ('r-1', '{}', '{}', '{}');
INSERT INTO run_file VALUES (1, 'r-1', '{}', 1, '\x7b7d');
INSERT INTO run_model VALUES ('r-1', '{}', '{}', '{}', '{}', 1);
INSERT INTO run_private VALUES ('r-1', '{}', '\x7b7d');
INSERT INTO saved_view VALUES ('{}', '{}', '{}', 1);
INSERT INTO sign_in VALUES ('{}', '{}', '{}', '{}', '{}', 1);
INSERT INTO sink VALUES ('r-1', '{}', '{}', '{}', '{}', 1, 1, '{}', 1);
INSERT INTO sink_cursor VALUES ('r-1', '{}', '{}', 1, 1, '{}', 1, 1, 1, true);
INSERT INTO submission VALUES ('{}', '{}', '{}', 'r-1', 1);
INSERT INTO task VALUES (2, 1, 1, 'ACQUIRING', NULL, '', '{}', 1, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, '[]', '{}', NULL, NULL, NULL);
INSERT INTO task VALUES (1, 1, 0, 'DONE', 'SUCCEEDED', 'so', '{}', 1, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, '[]', '{"loss":0.5}', 'file:///store/m', NULL, NULL);
INSERT INTO team VALUES ('{}', 1);
INSERT INTO team_secret VALUES ('{}', '{}', '\x7b7d', '{}', 1);
INSERT INTO token VALUES ('{}', '{}', '{}', '{}', '{}', 1, 1, 1, 1, '{}', '{}', '{}', 1);
INSERT INTO upload VALUES ('{}', '{}', '{}', '{}', '{}', 1, 1, '{}', 1, 1, 1, 1);
INSERT INTO upload_part VALUES ('{}', 1, 1, '{}');
INSERT INTO volume_content VALUES ('{}', '{}');
INSERT INTO web_session VALUES ('{}', '{}', '{}', '{}', '{}', 1, '{}', 1, '{}');
INSERT INTO webhook VALUES ('{}', '{}', '{}', '{}', '{}', '\x7b7d', 1, 1, '{}');
INSERT INTO workflow VALUES ('{}', '{}', '{}', '{}', '{}', '{}', '{}', 1, '{}', '{}', '{}', '\x7b7d', 1, 1);
INSERT INTO workflow_firing VALUES (1, '{}', '{}', '{}', 1, '{}', 'r-1', '{}', '{}', 1, 1);
INSERT INTO workflow_trigger VALUES ('{}', '{}', 1, '{}', 1);
SELECT pg_catalog.setval('attempt_id_seq', 2, true);
SELECT pg_catalog.setval('audit_id_seq', 1, true);
SELECT pg_catalog.setval('event_id_seq', 7, true);
SELECT pg_catalog.setval('experiment_id_seq', 2, true);
SELECT pg_catalog.setval('ledger_id_seq', 1, true);
SELECT pg_catalog.setval('login_attempt_id_seq', 1, true);
SELECT pg_catalog.setval('model_move_id_seq', 1, true);
SELECT pg_catalog.setval('outbox_id_seq', 1, true);
SELECT pg_catalog.setval('quote_id_seq', 2, true);
SELECT pg_catalog.setval('run_file_id_seq', 1, true);
SELECT pg_catalog.setval('task_id_seq', 2, true);
SELECT pg_catalog.setval('workflow_firing_id_seq', 1, true);
ALTER TABLE ONLY alembic_version
    ADD CONSTRAINT alembic_version_pkey PRIMARY KEY (version_num);
ALTER TABLE ONLY account
    ADD CONSTRAINT pk_account PRIMARY KEY (name);
ALTER TABLE ONLY admission
    ADD CONSTRAINT pk_admission PRIMARY KEY (run_id);
ALTER TABLE ONLY app
    ADD CONSTRAINT pk_app PRIMARY KEY (id);
ALTER TABLE ONLY app_pass
    ADD CONSTRAINT pk_app_pass PRIMARY KEY (digest);
ALTER TABLE ONLY attempt
    ADD CONSTRAINT pk_attempt PRIMARY KEY (id);
ALTER TABLE ONLY audit
    ADD CONSTRAINT pk_audit PRIMARY KEY (id);
ALTER TABLE ONLY audit_sink
    ADD CONSTRAINT pk_audit_sink PRIMARY KEY (target);
ALTER TABLE ONLY budget
    ADD CONSTRAINT pk_budget PRIMARY KEY (team);
ALTER TABLE ONLY budget_warning
    ADD CONSTRAINT pk_budget_warning PRIMARY KEY (team, month, percent);
ALTER TABLE ONLY cluster
    ADD CONSTRAINT pk_cluster PRIMARY KEY (id);
ALTER TABLE ONLY device_login
    ADD CONSTRAINT pk_device_login PRIMARY KEY (digest);
ALTER TABLE ONLY endpoint
    ADD CONSTRAINT pk_endpoint PRIMARY KEY (id);
ALTER TABLE ONLY event
    ADD CONSTRAINT pk_event PRIMARY KEY (id);
ALTER TABLE ONLY experiment
    ADD CONSTRAINT pk_experiment PRIMARY KEY (id);
ALTER TABLE ONLY invite
    ADD CONSTRAINT pk_invite PRIMARY KEY (digest);
ALTER TABLE ONLY ledger
    ADD CONSTRAINT pk_ledger PRIMARY KEY (id);
ALTER TABLE ONLY login_attempt
    ADD CONSTRAINT pk_login_attempt PRIMARY KEY (id);
ALTER TABLE ONLY measurement
    ADD CONSTRAINT pk_measurement PRIMARY KEY (id);
ALTER TABLE ONLY member
    ADD CONSTRAINT pk_member PRIMARY KEY (team, account);
ALTER TABLE ONLY model_alias
    ADD CONSTRAINT pk_model_alias PRIMARY KEY (team, name, alias);
ALTER TABLE ONLY model_move
    ADD CONSTRAINT pk_model_move PRIMARY KEY (id);
ALTER TABLE ONLY model_version
    ADD CONSTRAINT pk_model_version PRIMARY KEY (team, name, version);
ALTER TABLE ONLY notice
    ADD CONSTRAINT pk_notice PRIMARY KEY (id);
ALTER TABLE ONLY outbox
    ADD CONSTRAINT pk_outbox PRIMARY KEY (id);
ALTER TABLE ONLY quote
    ADD CONSTRAINT pk_quote PRIMARY KEY (id);
ALTER TABLE ONLY quote_request
    ADD CONSTRAINT pk_quote_request PRIMARY KEY (id);
ALTER TABLE ONLY registered_model
    ADD CONSTRAINT pk_registered_model PRIMARY KEY (team, name);
ALTER TABLE ONLY removed_model
    ADD CONSTRAINT pk_removed_model PRIMARY KEY (run_id, experiment, task);
ALTER TABLE ONLY replica
    ADD CONSTRAINT pk_replica PRIMARY KEY (id);
ALTER TABLE ONLY replica_load
    ADD CONSTRAINT pk_replica_load PRIMARY KEY (replica_id, server);
ALTER TABLE ONLY run
    ADD CONSTRAINT pk_run PRIMARY KEY (id);
ALTER TABLE ONLY run_fact
    ADD CONSTRAINT pk_run_fact PRIMARY KEY (run_id, kind, name);
ALTER TABLE ONLY run_file
    ADD CONSTRAINT pk_run_file PRIMARY KEY (id);
ALTER TABLE ONLY run_model
    ADD CONSTRAINT pk_run_model PRIMARY KEY (run_id, experiment, data);
ALTER TABLE ONLY run_private
    ADD CONSTRAINT pk_run_private PRIMARY KEY (run_id, name);
ALTER TABLE ONLY saved_view
    ADD CONSTRAINT pk_saved_view PRIMARY KEY (whose, name);
ALTER TABLE ONLY sign_in
    ADD CONSTRAINT pk_sign_in PRIMARY KEY (digest);
ALTER TABLE ONLY sink
    ADD CONSTRAINT pk_sink PRIMARY KEY (run_id, kind);
ALTER TABLE ONLY sink_cursor
    ADD CONSTRAINT pk_sink_cursor PRIMARY KEY (run_id, kind, experiment, task, attempt);
ALTER TABLE ONLY submission
    ADD CONSTRAINT pk_submission PRIMARY KEY (caller, key);
ALTER TABLE ONLY task
    ADD CONSTRAINT pk_task PRIMARY KEY (id);
ALTER TABLE ONLY team
    ADD CONSTRAINT pk_team PRIMARY KEY (name);
ALTER TABLE ONLY team_secret
    ADD CONSTRAINT pk_team_secret PRIMARY KEY (team, name);
ALTER TABLE ONLY token
    ADD CONSTRAINT pk_token PRIMARY KEY (name);
ALTER TABLE ONLY upload
    ADD CONSTRAINT pk_upload PRIMARY KEY (id);
ALTER TABLE ONLY upload_part
    ADD CONSTRAINT pk_upload_part PRIMARY KEY (upload_id, "offset");
ALTER TABLE ONLY volume_content
    ADD CONSTRAINT pk_volume_content PRIMARY KEY (id);
ALTER TABLE ONLY web_session
    ADD CONSTRAINT pk_web_session PRIMARY KEY (digest);
ALTER TABLE ONLY webhook
    ADD CONSTRAINT pk_webhook PRIMARY KEY (id);
ALTER TABLE ONLY workflow
    ADD CONSTRAINT pk_workflow PRIMARY KEY (id);
ALTER TABLE ONLY workflow_firing
    ADD CONSTRAINT pk_workflow_firing PRIMARY KEY (id);
ALTER TABLE ONLY workflow_trigger
    ADD CONSTRAINT pk_workflow_trigger PRIMARY KEY (workflow_id, key);
ALTER TABLE ONLY account
    ADD CONSTRAINT uq_account_issuer_subject UNIQUE (issuer, subject);
ALTER TABLE ONLY app
    ADD CONSTRAINT uq_app_place UNIQUE (place);
ALTER TABLE ONLY attempt
    ADD CONSTRAINT uq_attempt_experiment_id_task_number UNIQUE (experiment_id, task, number);
ALTER TABLE ONLY device_login
    ADD CONSTRAINT uq_device_login_user_digest UNIQUE (user_digest);
ALTER TABLE ONLY endpoint
    ADD CONSTRAINT uq_endpoint_place UNIQUE (place);
ALTER TABLE ONLY endpoint
    ADD CONSTRAINT uq_endpoint_run_id_experiment UNIQUE (run_id, experiment);
ALTER TABLE ONLY experiment
    ADD CONSTRAINT uq_experiment_run_id_name UNIQUE (run_id, name);
ALTER TABLE ONLY ledger
    ADD CONSTRAINT uq_ledger_run_id_kind_day UNIQUE (run_id, kind, day);
ALTER TABLE ONLY model_move
    ADD CONSTRAINT uq_model_move_team_name_alias_run_id_experiment UNIQUE (team, name, alias, run_id, experiment);
ALTER TABLE ONLY model_version
    ADD CONSTRAINT uq_model_version_team_name_run_id_experiment_task UNIQUE (team, name, run_id, experiment, task);
ALTER TABLE ONLY outbox
    ADD CONSTRAINT uq_outbox_event_id_subscription UNIQUE (event_id, subscription);
ALTER TABLE ONLY quote_request
    ADD CONSTRAINT uq_quote_request_team_place UNIQUE (team, place);
ALTER TABLE ONLY replica
    ADD CONSTRAINT uq_replica_endpoint_id_task UNIQUE (endpoint_id, task);
ALTER TABLE ONLY run_file
    ADD CONSTRAINT uq_run_file_run_id_path_offset UNIQUE (run_id, path, "offset");
ALTER TABLE ONLY task
    ADD CONSTRAINT uq_task_experiment_id_number UNIQUE (experiment_id, number);
ALTER TABLE ONLY token
    ADD CONSTRAINT uq_token_digest UNIQUE (digest);
ALTER TABLE ONLY workflow_firing
    ADD CONSTRAINT uq_workflow_firing_workflow_id_trigger_cause UNIQUE (workflow_id, trigger, cause);
ALTER TABLE ONLY workflow
    ADD CONSTRAINT uq_workflow_team_name UNIQUE (team, name);
CREATE INDEX ix_app_home_id_state ON app USING btree (home_id, state);
CREATE INDEX ix_app_pass_app_id ON app_pass USING btree (app_id);
CREATE INDEX ix_app_team_created_at ON app USING btree (team, created_at);
CREATE INDEX ix_audit_at ON audit USING btree (at);
CREATE INDEX ix_cluster_run_id ON cluster USING btree (run_id);
CREATE INDEX ix_endpoint_team_created_at ON endpoint USING btree (team, created_at);
CREATE INDEX ix_event_run_id_id ON event USING btree (run_id, id);
CREATE INDEX ix_invite_team ON invite USING btree (team);
CREATE INDEX ix_ledger_day ON ledger USING btree (day);
CREATE INDEX ix_login_attempt_address_at ON login_attempt USING btree (address, at);
CREATE INDEX ix_measurement_fingerprint_measured_at ON measurement USING btree (fingerprint, measured_at);
CREATE INDEX ix_measurement_similar_measured_at ON measurement USING btree ("similar", measured_at);
CREATE INDEX ix_member_account ON member USING btree (account);
CREATE INDEX ix_model_version_run_id ON model_version USING btree (run_id);
CREATE INDEX ix_notice_done_at_due_at ON notice USING btree (done_at, due_at);
CREATE INDEX ix_notice_webhook_id_at ON notice USING btree (webhook_id, at);
CREATE INDEX ix_outbox_run_id ON outbox USING btree (run_id);
CREATE INDEX ix_quote_request_state ON quote_request USING btree (state);
CREATE INDEX ix_quote_request_team_created_at ON quote_request USING btree (team, created_at);
CREATE INDEX ix_quote_run_id_id ON quote USING btree (run_id, id);
CREATE INDEX ix_run_away ON run USING btree (away);
CREATE INDEX ix_run_created_at ON run USING btree (created_at);
CREATE INDEX ix_run_file_run_id_id ON run_file USING btree (run_id, id);
CREATE INDEX ix_run_model_team_name_version ON run_model USING btree (team, name, version);
CREATE INDEX ix_run_open ON run USING btree (lease_owner);
CREATE INDEX ix_run_team_created_at ON run USING btree (team, created_at);
CREATE INDEX ix_sink_state ON sink USING btree (state);
CREATE INDEX ix_task_experiment_id_state_reason ON task USING btree (experiment_id, state, reason);
CREATE INDEX ix_task_kept ON task USING btree (experiment_id, number);
CREATE INDEX ix_task_model ON task USING btree (experiment_id, number);
CREATE INDEX ix_upload_team ON upload USING btree (team);
CREATE INDEX ix_webhook_team ON webhook USING btree (team);
CREATE INDEX ix_workflow_firing_run_id ON workflow_firing USING btree (run_id);
CREATE INDEX ix_workflow_firing_state ON workflow_firing USING btree (state);
CREATE INDEX ix_workflow_firing_workflow_id_id ON workflow_firing USING btree (workflow_id, id);
ALTER TABLE ONLY account
    ADD CONSTRAINT fk_account_team FOREIGN KEY (team) REFERENCES team(name);
ALTER TABLE ONLY admission
    ADD CONSTRAINT fk_admission_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY app_pass
    ADD CONSTRAINT fk_app_pass_app_id FOREIGN KEY (app_id) REFERENCES app(id);
ALTER TABLE ONLY app
    ADD CONSTRAINT fk_app_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY app
    ADD CONSTRAINT fk_app_team FOREIGN KEY (team) REFERENCES team(name);
ALTER TABLE ONLY attempt
    ADD CONSTRAINT fk_attempt_experiment_id FOREIGN KEY (experiment_id) REFERENCES experiment(id);
ALTER TABLE ONLY cluster
    ADD CONSTRAINT fk_cluster_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY endpoint
    ADD CONSTRAINT fk_endpoint_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY endpoint
    ADD CONSTRAINT fk_endpoint_team FOREIGN KEY (team) REFERENCES team(name);
ALTER TABLE ONLY experiment
    ADD CONSTRAINT fk_experiment_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY invite
    ADD CONSTRAINT fk_invite_team FOREIGN KEY (team) REFERENCES team(name);
ALTER TABLE ONLY ledger
    ADD CONSTRAINT fk_ledger_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY member
    ADD CONSTRAINT fk_member_account FOREIGN KEY (account) REFERENCES account(name);
ALTER TABLE ONLY member
    ADD CONSTRAINT fk_member_team FOREIGN KEY (team) REFERENCES team(name);
ALTER TABLE ONLY model_version
    ADD CONSTRAINT fk_model_version_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY notice
    ADD CONSTRAINT fk_notice_webhook_id FOREIGN KEY (webhook_id) REFERENCES webhook(id);
ALTER TABLE ONLY outbox
    ADD CONSTRAINT fk_outbox_event_id FOREIGN KEY (event_id) REFERENCES event(id);
ALTER TABLE ONLY outbox
    ADD CONSTRAINT fk_outbox_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY quote
    ADD CONSTRAINT fk_quote_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY removed_model
    ADD CONSTRAINT fk_removed_model_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY replica
    ADD CONSTRAINT fk_replica_endpoint_id FOREIGN KEY (endpoint_id) REFERENCES endpoint(id);
ALTER TABLE ONLY replica_load
    ADD CONSTRAINT fk_replica_load_replica_id FOREIGN KEY (replica_id) REFERENCES replica(id);
ALTER TABLE ONLY run_fact
    ADD CONSTRAINT fk_run_fact_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY run_file
    ADD CONSTRAINT fk_run_file_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY run_model
    ADD CONSTRAINT fk_run_model_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY run_private
    ADD CONSTRAINT fk_run_private_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY sink_cursor
    ADD CONSTRAINT fk_sink_cursor_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY sink
    ADD CONSTRAINT fk_sink_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY submission
    ADD CONSTRAINT fk_submission_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY task
    ADD CONSTRAINT fk_task_experiment_id FOREIGN KEY (experiment_id) REFERENCES experiment(id);
ALTER TABLE ONLY team_secret
    ADD CONSTRAINT fk_team_secret_team FOREIGN KEY (team) REFERENCES team(name);
ALTER TABLE ONLY token
    ADD CONSTRAINT fk_token_team FOREIGN KEY (team) REFERENCES team(name);
ALTER TABLE ONLY upload_part
    ADD CONSTRAINT fk_upload_part_upload_id FOREIGN KEY (upload_id) REFERENCES upload(id);
ALTER TABLE ONLY upload
    ADD CONSTRAINT fk_upload_team FOREIGN KEY (team) REFERENCES team(name);
ALTER TABLE ONLY web_session
    ADD CONSTRAINT fk_web_session_team FOREIGN KEY (team) REFERENCES team(name);
ALTER TABLE ONLY workflow_firing
    ADD CONSTRAINT fk_workflow_firing_run_id FOREIGN KEY (run_id) REFERENCES run(id);
ALTER TABLE ONLY workflow_firing
    ADD CONSTRAINT fk_workflow_firing_workflow_id FOREIGN KEY (workflow_id) REFERENCES workflow(id);
ALTER TABLE ONLY workflow_trigger
    ADD CONSTRAINT fk_workflow_trigger_workflow_id FOREIGN KEY (workflow_id) REFERENCES workflow(id);
