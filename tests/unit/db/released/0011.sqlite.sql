CREATE TABLE account (
	name TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	team TEXT, 
	admin_by TEXT, 
	issuer TEXT, 
	subject TEXT, 
	created_at FLOAT NOT NULL, 
	disabled_at FLOAT, 
	groups_until FLOAT, 
	CONSTRAINT pk_account PRIMARY KEY (name), 
	CONSTRAINT uq_account_issuer_subject UNIQUE (issuer, subject), 
	CONSTRAINT fk_account_team FOREIGN KEY(team) REFERENCES team (name)
);
INSERT INTO "account" VALUES('{}','{}','{}','{}','{}','{}',1.0,1.0,1.0);
CREATE TABLE admission (
	run_id TEXT NOT NULL, 
	priority INTEGER NOT NULL, 
	most_micro_usd BIGINT NOT NULL, 
	usd_per_hour FLOAT NOT NULL, 
	asked_at FLOAT NOT NULL, 
	admitted_at FLOAT, 
	CONSTRAINT pk_admission PRIMARY KEY (run_id), 
	CONSTRAINT fk_admission_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "admission" VALUES('r-1',1,1,1.0,1.0,1.0);
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
INSERT INTO "alembic_version" VALUES('0011');
CREATE TABLE app (
	id TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	team TEXT, 
	opened_by TEXT NOT NULL, 
	account TEXT, 
	runs TEXT NOT NULL, 
	run_id TEXT, 
	home_id TEXT NOT NULL, 
	place TEXT, 
	directory TEXT, 
	member TEXT, 
	state TEXT NOT NULL, 
	reason TEXT, 
	ends BOOLEAN DEFAULT 0 NOT NULL, 
	port INTEGER, 
	owner TEXT, 
	expires_at FLOAT, 
	created_at FLOAT NOT NULL, 
	used_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	CONSTRAINT pk_app PRIMARY KEY (id), 
	CONSTRAINT fk_app_team FOREIGN KEY(team) REFERENCES team (name), 
	CONSTRAINT fk_app_run_id FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT uq_app_place UNIQUE (place)
);
INSERT INTO "app" VALUES('{}','{}','{}','{}','{}','{}','r-1','{}','{}','{}','{}','{}','{}',1,1,'{}',1.0,1.0,1.0,1.0);
CREATE TABLE app_pass (
	digest TEXT NOT NULL, 
	app_id TEXT NOT NULL, 
	is_ticket BOOLEAN NOT NULL, 
	expires_at FLOAT NOT NULL, 
	credential TEXT, 
	is_session BOOLEAN NOT NULL, 
	team TEXT, 
	CONSTRAINT pk_app_pass PRIMARY KEY (digest), 
	CONSTRAINT fk_app_pass_app_id FOREIGN KEY(app_id) REFERENCES app (id)
);
INSERT INTO "app_pass" VALUES('{}','{}',1,1.0,'{}',1,'{}');
CREATE TABLE attempt (
	id INTEGER NOT NULL, 
	experiment_id INTEGER NOT NULL, 
	task BIGINT NOT NULL, 
	number INTEGER NOT NULL, 
	reason TEXT, 
	message TEXT DEFAULT '' NOT NULL, 
	opened_at FLOAT NOT NULL, 
	started_at FLOAT, 
	ended_at FLOAT, 
	restored INTEGER, 
	members TEXT, 
	CONSTRAINT pk_attempt PRIMARY KEY (id), 
	CONSTRAINT uq_attempt_experiment_id_task_number UNIQUE (experiment_id, task, number), 
	CONSTRAINT fk_attempt_experiment_id FOREIGN KEY(experiment_id) REFERENCES experiment (id)
);
INSERT INTO "attempt" VALUES(1,1,0,1,'SUCCEEDED','so',1000000.0,1000000.0,1000005.0,NULL,'[]');
INSERT INTO "attempt" VALUES(2,1,1,1,NULL,'',1000000.0,NULL,NULL,NULL,NULL);
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	name TEXT NOT NULL, 
	team TEXT, 
	address TEXT NOT NULL, 
	action TEXT NOT NULL, 
	status INTEGER NOT NULL, 
	token TEXT, 
	hash TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_audit PRIMARY KEY (id)
);
INSERT INTO "audit" VALUES(1,1.0,'{}','{}','{}','{}',1,'{}','{}');
CREATE TABLE audit_sink (
	target TEXT NOT NULL, 
	sent BIGINT DEFAULT '0' NOT NULL, 
	sent_at FLOAT, 
	trouble TEXT DEFAULT '' NOT NULL, 
	failures INTEGER DEFAULT '0' NOT NULL, 
	try_at FLOAT DEFAULT '0' NOT NULL, 
	owner TEXT, 
	expires_at FLOAT, 
	CONSTRAINT pk_audit_sink PRIMARY KEY (target)
);
INSERT INTO "audit_sink" VALUES('{}',1,1.0,'{}',1,1.0,'{}',1.0);
CREATE TABLE budget (
	team TEXT NOT NULL, 
	monthly_usd FLOAT, 
	runs_at_once INTEGER, 
	usd_per_hour FLOAT, 
	cpus_at_once INTEGER, 
	CONSTRAINT pk_budget PRIMARY KEY (team)
);
INSERT INTO "budget" VALUES('{}',1.0,1,1.0,1);
CREATE TABLE budget_warning (
	team TEXT NOT NULL, 
	month TEXT NOT NULL, 
	percent INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	CONSTRAINT pk_budget_warning PRIMARY KEY (team, month, percent)
);
INSERT INTO "budget_warning" VALUES('{}','{}',1,1.0);
CREATE TABLE cluster (
	id TEXT NOT NULL, 
	run_id TEXT NOT NULL, 
	provider TEXT NOT NULL, 
	home_id TEXT NOT NULL, 
	state TEXT NOT NULL, 
	kept_until FLOAT, 
	waited_s FLOAT, 
	data TEXT NOT NULL, 
	changed_at FLOAT NOT NULL, 
	CONSTRAINT pk_cluster PRIMARY KEY (id), 
	CONSTRAINT fk_cluster_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "cluster" VALUES('r-1.a','r-1','lab','h','ACTIVE',NULL,9.5,'{"asked": 1}',1000000.0);
CREATE TABLE device_login (
	digest TEXT NOT NULL, 
	user_digest TEXT NOT NULL, 
	client TEXT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	confirmed TEXT, 
	CONSTRAINT pk_device_login PRIMARY KEY (digest), 
	CONSTRAINT uq_device_login_user_digest UNIQUE (user_digest)
);
INSERT INTO "device_login" VALUES('{}','{}','{}',1.0,'{}');
CREATE TABLE endpoint (
	id TEXT NOT NULL, 
	team TEXT, 
	name TEXT NOT NULL, 
	place TEXT, 
	run_id TEXT NOT NULL, 
	experiment TEXT NOT NULL, 
	model TEXT, 
	version TEXT, 
	model_uri TEXT, 
	refused TEXT, 
	failures INTEGER DEFAULT '0' NOT NULL, 
	try_at FLOAT DEFAULT '0' NOT NULL, 
	asked_at FLOAT, 
	created_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	CONSTRAINT pk_endpoint PRIMARY KEY (id), 
	CONSTRAINT uq_endpoint_run_id_experiment UNIQUE (run_id, experiment), 
	CONSTRAINT fk_endpoint_team FOREIGN KEY(team) REFERENCES team (name), 
	CONSTRAINT uq_endpoint_place UNIQUE (place), 
	CONSTRAINT fk_endpoint_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "endpoint" VALUES('{}','{}','{}','{}','r-1','{}','{}','{}','{}','{}',1,1.0,1.0,1.0,1.0);
CREATE TABLE event (
	id INTEGER NOT NULL, 
	run_id TEXT NOT NULL, 
	experiment TEXT, 
	task BIGINT, 
	attempt INTEGER, 
	at FLOAT NOT NULL, 
	kind TEXT NOT NULL, 
	"before" TEXT, 
	"after" TEXT, 
	reason TEXT, 
	message TEXT DEFAULT '' NOT NULL, 
	topic TEXT, 
	CONSTRAINT pk_event PRIMARY KEY (id)
);
INSERT INTO "event" VALUES(1,'r-1',NULL,NULL,NULL,1000000.0,'run',NULL,'WAITING',NULL,'',NULL);
INSERT INTO "event" VALUES(2,'r-1',NULL,NULL,NULL,1000000.0,'run','WAITING','RUNNING',NULL,'','run.started');
INSERT INTO "event" VALUES(3,'r-1','a',0,0,1000000.0,'task','WAITING','PLANNED',NULL,'',NULL);
INSERT INTO "event" VALUES(4,'r-1','a',0,1,1000000.0,'task','PLANNED','ACQUIRING',NULL,'',NULL);
INSERT INTO "event" VALUES(5,'r-1','a',1,0,1000000.0,'task','WAITING','PLANNED',NULL,'',NULL);
INSERT INTO "event" VALUES(6,'r-1','a',1,1,1000000.0,'task','PLANNED','ACQUIRING',NULL,'',NULL);
INSERT INTO "event" VALUES(7,'r-1','a',0,1,1000000.0,'task','SAVING','DONE','SUCCEEDED','so',NULL);
CREATE TABLE experiment (
	id INTEGER NOT NULL, 
	run_id TEXT NOT NULL, 
	ordinal INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT, 
	message TEXT DEFAULT '' NOT NULL, 
	tasks_total BIGINT NOT NULL, 
	rest_reason TEXT, 
	CONSTRAINT pk_experiment PRIMARY KEY (id), 
	CONSTRAINT uq_experiment_run_id_name UNIQUE (run_id, name), 
	CONSTRAINT fk_experiment_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "experiment" VALUES(1,'r-1',0,'a','WAITING',NULL,'',3,NULL);
INSERT INTO "experiment" VALUES(2,'r-1',1,'b','WAITING',NULL,'',1,NULL);
CREATE TABLE invite (
	digest TEXT NOT NULL, 
	team TEXT NOT NULL, 
	role TEXT NOT NULL, 
	invited_by TEXT, 
	made_with TEXT, 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	used_by TEXT, 
	CONSTRAINT pk_invite PRIMARY KEY (digest), 
	CONSTRAINT fk_invite_team FOREIGN KEY(team) REFERENCES team (name)
);
INSERT INTO "invite" VALUES('{}','{}','{}','{}','{}',1.0,1.0,'{}');
CREATE TABLE ledger (
	id INTEGER NOT NULL, 
	run_id TEXT NOT NULL, 
	team TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	day TEXT NOT NULL, 
	micro_usd BIGINT NOT NULL, 
	at FLOAT NOT NULL, 
	CONSTRAINT pk_ledger PRIMARY KEY (id), 
	CONSTRAINT uq_ledger_run_id_kind_day UNIQUE (run_id, kind, day), 
	CONSTRAINT fk_ledger_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "ledger" VALUES(1,'r-1','{}','{}','{}',1,1.0);
CREATE TABLE login_attempt (
	id INTEGER NOT NULL, 
	address TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	CONSTRAINT pk_login_attempt PRIMARY KEY (id)
);
INSERT INTO "login_attempt" VALUES(1,'{}',1.0);
CREATE TABLE measurement (
	id TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	similar TEXT NOT NULL, 
	experiment TEXT NOT NULL, 
	run_id TEXT, 
	data TEXT NOT NULL, 
	measured_at FLOAT NOT NULL, 
	CONSTRAINT pk_measurement PRIMARY KEY (id)
);
INSERT INTO "measurement" VALUES('r-1/a/0/1','f','s','a','r-1','{"duration_s": 5}',1000000.0);
CREATE TABLE member (
	team TEXT NOT NULL, 
	account TEXT NOT NULL, 
	role TEXT NOT NULL, 
	by_groups BOOLEAN NOT NULL, 
	CONSTRAINT pk_member PRIMARY KEY (team, account), 
	CONSTRAINT fk_member_team FOREIGN KEY(team) REFERENCES team (name), 
	CONSTRAINT fk_member_account FOREIGN KEY(account) REFERENCES account (name)
);
INSERT INTO "member" VALUES('{}','{}','{}',1);
CREATE TABLE model_alias (
	team TEXT NOT NULL, 
	name TEXT NOT NULL, 
	alias TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	moved_by TEXT NOT NULL, 
	moved_at FLOAT NOT NULL, 
	CONSTRAINT pk_model_alias PRIMARY KEY (team, name, alias)
);
INSERT INTO "model_alias" VALUES('{}','{}','{}',1,'{}',1.0);
CREATE TABLE model_move (
	id INTEGER NOT NULL, 
	team TEXT NOT NULL, 
	name TEXT NOT NULL, 
	alias TEXT NOT NULL, 
	"before" INTEGER, 
	version INTEGER, 
	kind TEXT NOT NULL, 
	moved_by TEXT NOT NULL, 
	moved_at FLOAT NOT NULL, 
	run_id TEXT, 
	experiment TEXT, 
	CONSTRAINT pk_model_move PRIMARY KEY (id), 
	CONSTRAINT uq_model_move_team_name_alias_run_id_experiment UNIQUE (team, name, alias, run_id, experiment)
);
INSERT INTO "model_move" VALUES(1,'{}','{}','{}',1,1,'{}','{}',1.0,'{}','{}');
CREATE TABLE model_version (
	team TEXT NOT NULL, 
	name TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	run_id TEXT NOT NULL, 
	experiment TEXT NOT NULL, 
	task BIGINT NOT NULL, 
	uri TEXT NOT NULL, 
	tags TEXT DEFAULT '{}' NOT NULL, 
	created_by TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_model_version PRIMARY KEY (team, name, version), 
	CONSTRAINT uq_model_version_team_name_run_id_experiment_task UNIQUE (team, name, run_id, experiment, task), 
	CONSTRAINT fk_model_version_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "model_version" VALUES('{}','{}',1,'r-1','{}',1,'{}','{}','{}',1.0);
CREATE TABLE notice (
	id TEXT NOT NULL, 
	webhook_id TEXT NOT NULL, 
	topic TEXT NOT NULL, 
	body TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	tries INTEGER DEFAULT '0' NOT NULL, 
	due_at FLOAT NOT NULL, 
	done_at FLOAT, 
	status TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_notice PRIMARY KEY (id), 
	CONSTRAINT fk_notice_webhook_id FOREIGN KEY(webhook_id) REFERENCES webhook (id)
);
INSERT INTO "notice" VALUES('{}','{}','{}','{}',1.0,1,1.0,1.0,'{}');
CREATE TABLE outbox (
	id INTEGER NOT NULL, 
	run_id TEXT NOT NULL, 
	event_id INTEGER NOT NULL, 
	subscription INTEGER NOT NULL, 
	tries INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_outbox PRIMARY KEY (id), 
	CONSTRAINT uq_outbox_event_id_subscription UNIQUE (event_id, subscription), 
	CONSTRAINT fk_outbox_run_id FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_outbox_event_id FOREIGN KEY(event_id) REFERENCES event (id)
);
INSERT INTO "outbox" VALUES(1,'r-1',1,1,1);
CREATE TABLE quote (
	id INTEGER NOT NULL, 
	run_id TEXT NOT NULL, 
	experiment TEXT, 
	kind TEXT NOT NULL, 
	made_at FLOAT NOT NULL, 
	data TEXT NOT NULL, 
	time_s FLOAT, 
	cost_usd FLOAT, 
	kept BOOLEAN, 
	CONSTRAINT pk_quote PRIMARY KEY (id), 
	CONSTRAINT fk_quote_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "quote" VALUES(1,'r-1',NULL,'estimate',1000000.0,'{"p95": 7}',6.0,0.0,1);
INSERT INTO "quote" VALUES(2,'r-1','a','binding',1000001.0,'{}',NULL,NULL,NULL);
CREATE TABLE quote_request (
	id TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	team TEXT NOT NULL, 
	asked_by TEXT NOT NULL, 
	request TEXT NOT NULL, 
	state TEXT NOT NULL, 
	place INTEGER, 
	worker TEXT, 
	expires_at FLOAT, 
	attempts INTEGER NOT NULL, 
	told TEXT NOT NULL, 
	progress TEXT, 
	answer TEXT, 
	error TEXT, 
	created_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	CONSTRAINT pk_quote_request PRIMARY KEY (id), 
	CONSTRAINT uq_quote_request_team_place UNIQUE (team, place)
);
INSERT INTO "quote_request" VALUES('{}','{}','{}','{}','{}','{}',1,'{}',1.0,1,'{}','{}','{}','{}',1.0,1.0);
CREATE TABLE registered_model (
	team TEXT NOT NULL, 
	name TEXT NOT NULL, 
	description TEXT DEFAULT '' NOT NULL, 
	tags TEXT DEFAULT '{}' NOT NULL, 
	last_version INTEGER DEFAULT '0' NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_registered_model PRIMARY KEY (team, name)
);
INSERT INTO "registered_model" VALUES('{}','{}','{}','{}',1,1.0);
CREATE TABLE removed_model (
	run_id TEXT NOT NULL, 
	experiment TEXT NOT NULL, 
	task BIGINT NOT NULL, 
	uri TEXT NOT NULL, 
	team TEXT NOT NULL, 
	name TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	removed_at FLOAT NOT NULL, 
	CONSTRAINT pk_removed_model PRIMARY KEY (run_id, experiment, task), 
	CONSTRAINT fk_removed_model_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "removed_model" VALUES('r-1','{}',1,'{}','{}','{}',1,1.0);
CREATE TABLE replica (
	id TEXT NOT NULL, 
	endpoint_id TEXT NOT NULL, 
	task BIGINT NOT NULL, 
	attempt INTEGER DEFAULT '0' NOT NULL, 
	version TEXT, 
	model_uri TEXT, 
	state TEXT NOT NULL, 
	node TEXT, 
	port INTEGER, 
	said TEXT DEFAULT '' NOT NULL, 
	created_at FLOAT NOT NULL, 
	ready_at FLOAT, 
	draining_since FLOAT, 
	ended_at FLOAT, 
	CONSTRAINT pk_replica PRIMARY KEY (id), 
	CONSTRAINT uq_replica_endpoint_id_task UNIQUE (endpoint_id, task), 
	CONSTRAINT fk_replica_endpoint_id FOREIGN KEY(endpoint_id) REFERENCES endpoint (id)
);
INSERT INTO "replica" VALUES('{}','{}',1,1,'{}','{}','{}','{}',1,'{}',1.0,1.0,1.0,1.0);
CREATE TABLE replica_load (
	replica_id TEXT NOT NULL, 
	server TEXT NOT NULL, 
	in_flight INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	CONSTRAINT pk_replica_load PRIMARY KEY (replica_id, server), 
	CONSTRAINT fk_replica_load_replica_id FOREIGN KEY(replica_id) REFERENCES replica (id)
);
INSERT INTO "replica_load" VALUES('{}','{}',1,1.0);
CREATE TABLE run (
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	recipe TEXT NOT NULL, 
	recipe_path TEXT NOT NULL, 
	provider TEXT NOT NULL, 
	code_path TEXT NOT NULL, 
	store_url TEXT NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT, 
	message TEXT DEFAULT '' NOT NULL, 
	created_at FLOAT NOT NULL, 
	session_at FLOAT, 
	ended_at FLOAT, 
	closed_at FLOAT, 
	earlier_s FLOAT DEFAULT '0' NOT NULL, 
	queued_at FLOAT, 
	queued_for TEXT, 
	queued_s FLOAT DEFAULT '0' NOT NULL, 
	cost_usd FLOAT DEFAULT '0' NOT NULL, 
	stop_wanted TEXT, 
	lease_owner TEXT, 
	lease_token INTEGER DEFAULT '0' NOT NULL, 
	lease_expires_at FLOAT, 
	turn BIGINT DEFAULT '0' NOT NULL, 
	home TEXT DEFAULT '' NOT NULL, 
	home_id TEXT DEFAULT '' NOT NULL, 
	notify TEXT, 
	team TEXT, 
	submitted_by TEXT, 
	wallet TEXT, 
	can_move BOOLEAN DEFAULT 0 NOT NULL, 
	kept_by TEXT, 
	labels TEXT DEFAULT '{}' NOT NULL, 
	note TEXT DEFAULT '' NOT NULL, 
	away TEXT, 
	removed_at FLOAT, 
	trimmed_at FLOAT, 
	CONSTRAINT pk_run PRIMARY KEY (id)
);
INSERT INTO "run" VALUES('r-1','r','{}','/recipe.yaml','local','/code','file:///store','RUNNING',NULL,'',1000000.0,1000000.0,NULL,NULL,0.0,NULL,NULL,0.0,0.0,NULL,NULL,1,1.79570675685644078251e+09,2,'','',NULL,NULL,NULL,NULL,0,NULL,'{}','',NULL,NULL,NULL);
CREATE TABLE run_fact (
	run_id TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	CONSTRAINT pk_run_fact PRIMARY KEY (run_id, kind, name), 
	CONSTRAINT fk_run_fact_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "run_fact" VALUES('r-1','{}','{}','{}');
CREATE TABLE run_file (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	run_id TEXT NOT NULL, 
	path TEXT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	data BLOB NOT NULL, 
	CONSTRAINT uq_run_file_run_id_path_offset UNIQUE (run_id, path, "offset"), 
	CONSTRAINT fk_run_file_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "run_file" VALUES(1,'r-1','{}',1,X'7B7D');
CREATE TABLE run_model (
	run_id TEXT NOT NULL, 
	experiment TEXT NOT NULL, 
	data TEXT NOT NULL, 
	team TEXT NOT NULL, 
	name TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	CONSTRAINT pk_run_model PRIMARY KEY (run_id, experiment, data), 
	CONSTRAINT fk_run_model_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "run_model" VALUES('r-1','{}','{}','{}','{}',1);
CREATE TABLE run_private (
	run_id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	sealed BLOB NOT NULL, 
	CONSTRAINT pk_run_private PRIMARY KEY (run_id, name), 
	CONSTRAINT fk_run_private_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "run_private" VALUES('r-1','{}',X'7B7D');
CREATE TABLE saved_view (
	whose TEXT NOT NULL, 
	name TEXT NOT NULL, 
	"query" TEXT NOT NULL, 
	changed_at FLOAT NOT NULL, 
	CONSTRAINT pk_saved_view PRIMARY KEY (whose, name)
);
INSERT INTO "saved_view" VALUES('{}','{}','{}',1.0);
CREATE TABLE sign_in (
	digest TEXT NOT NULL, 
	state TEXT NOT NULL, 
	nonce TEXT NOT NULL, 
	verifier TEXT NOT NULL, 
	wanted TEXT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	CONSTRAINT pk_sign_in PRIMARY KEY (digest)
);
INSERT INTO "sign_in" VALUES('{}','{}','{}','{}','{}',1.0);
CREATE TABLE sink (
	run_id TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	state TEXT NOT NULL, 
	remote TEXT, 
	trouble TEXT DEFAULT '' NOT NULL, 
	failures INTEGER DEFAULT '0' NOT NULL, 
	try_at FLOAT DEFAULT '0' NOT NULL, 
	owner TEXT, 
	expires_at FLOAT, 
	CONSTRAINT pk_sink PRIMARY KEY (run_id, kind), 
	CONSTRAINT fk_sink_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "sink" VALUES('r-1','{}','{}','{}','{}',1,1.0,'{}',1.0);
CREATE TABLE sink_cursor (
	run_id TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	experiment TEXT NOT NULL, 
	task BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	remote TEXT NOT NULL, 
	reports BIGINT DEFAULT '0' NOT NULL, 
	sending BIGINT DEFAULT '0' NOT NULL, 
	sending_at FLOAT DEFAULT '0' NOT NULL, 
	is_over BOOLEAN DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_sink_cursor PRIMARY KEY (run_id, kind, experiment, task, attempt), 
	CONSTRAINT fk_sink_cursor_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "sink_cursor" VALUES('r-1','{}','{}',1,1,'{}',1,1,1.0,1);
CREATE TABLE submission (
	caller TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	run_id TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_submission PRIMARY KEY (caller, "key"), 
	CONSTRAINT fk_submission_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "submission" VALUES('{}','{}','{}','r-1',1.0);
CREATE TABLE task (
	id INTEGER NOT NULL, 
	experiment_id INTEGER NOT NULL, 
	number BIGINT NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT, 
	message TEXT DEFAULT '' NOT NULL, 
	parameters TEXT DEFAULT '{}' NOT NULL, 
	attempt INTEGER DEFAULT '0' NOT NULL, 
	retries_used INTEGER DEFAULT '0' NOT NULL, 
	free_restarts INTEGER DEFAULT '0' NOT NULL, 
	not_before FLOAT DEFAULT '0' NOT NULL, 
	tries INTEGER DEFAULT '0' NOT NULL, 
	try_at FLOAT DEFAULT '0' NOT NULL, 
	saving_usd FLOAT DEFAULT '0' NOT NULL, 
	kept_model INTEGER, 
	kept_checkpoint INTEGER, 
	end_reason TEXT, 
	parent BIGINT, 
	restored INTEGER, 
	bad_checkpoints TEXT DEFAULT '[]' NOT NULL, 
	metrics TEXT DEFAULT '{}' NOT NULL, 
	model_uri TEXT, 
	started_at FLOAT, 
	ended_at FLOAT, 
	CONSTRAINT pk_task PRIMARY KEY (id), 
	CONSTRAINT uq_task_experiment_id_number UNIQUE (experiment_id, number), 
	CONSTRAINT fk_task_experiment_id FOREIGN KEY(experiment_id) REFERENCES experiment (id)
);
INSERT INTO "task" VALUES(1,1,0,'DONE','SUCCEEDED','so','{}',1,0,0,0.0,0,0.0,0.0,NULL,NULL,NULL,NULL,NULL,'[]','{"loss":0.5}','file:///store/m',NULL,NULL);
INSERT INTO "task" VALUES(2,1,1,'ACQUIRING',NULL,'','{}',1,0,0,0.0,0,0.0,0.0,NULL,NULL,NULL,NULL,NULL,'[]','{}',NULL,NULL,NULL);
CREATE TABLE team (
	name TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_team PRIMARY KEY (name)
);
INSERT INTO "team" VALUES('{}',1.0);
CREATE TABLE team_secret (
	team TEXT NOT NULL, 
	name TEXT NOT NULL, 
	sealed BLOB NOT NULL, 
	changed_by TEXT NOT NULL, 
	changed_at FLOAT NOT NULL, 
	CONSTRAINT pk_team_secret PRIMARY KEY (team, name), 
	CONSTRAINT fk_team_secret_team FOREIGN KEY(team) REFERENCES team (name)
);
INSERT INTO "team_secret" VALUES('{}','{}',X'7B7D','{}',1.0);
CREATE TABLE token (
	name TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	beginning TEXT NOT NULL, 
	team TEXT, 
	scopes TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	used_at FLOAT, 
	revoked_at FLOAT, 
	account TEXT, 
	made_with TEXT, 
	wallet TEXT, 
	at_most_usd FLOAT, 
	CONSTRAINT pk_token PRIMARY KEY (name), 
	CONSTRAINT uq_token_digest UNIQUE (digest), 
	CONSTRAINT fk_token_team FOREIGN KEY(team) REFERENCES team (name)
);
INSERT INTO "token" VALUES('{}','{}','{}','{}','{}',1.0,1.0,1.0,1.0,'{}','{}','{}',1.0);
CREATE TABLE upload (
	id TEXT NOT NULL, 
	team TEXT, 
	name TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	state TEXT NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	received_bytes BIGINT DEFAULT '0' NOT NULL, 
	result TEXT, 
	claim INTEGER DEFAULT '0' NOT NULL, 
	claimed_until FLOAT, 
	created_at FLOAT NOT NULL, 
	used_at FLOAT NOT NULL, 
	CONSTRAINT pk_upload PRIMARY KEY (id), 
	CONSTRAINT fk_upload_team FOREIGN KEY(team) REFERENCES team (name)
);
INSERT INTO "upload" VALUES('{}','{}','{}','{}','{}',1,1,'{}',1,1.0,1.0,1.0);
CREATE TABLE upload_part (
	upload_id TEXT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	"key" TEXT NOT NULL, 
	CONSTRAINT pk_upload_part PRIMARY KEY (upload_id, "offset"), 
	CONSTRAINT fk_upload_part_upload_id FOREIGN KEY(upload_id) REFERENCES upload (id)
);
INSERT INTO "upload_part" VALUES('{}',1,1,'{}');
CREATE TABLE volume_content (
	id TEXT NOT NULL, 
	described TEXT NOT NULL, 
	CONSTRAINT pk_volume_content PRIMARY KEY (id)
);
INSERT INTO "volume_content" VALUES('{}','{}');
CREATE TABLE web_session (
	digest TEXT NOT NULL, 
	name TEXT NOT NULL, 
	team TEXT, 
	scopes TEXT NOT NULL, 
	token TEXT, 
	expires_at FLOAT NOT NULL, 
	account TEXT, 
	created_at FLOAT DEFAULT '0' NOT NULL, 
	address TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_web_session PRIMARY KEY (digest), 
	CONSTRAINT fk_web_session_team FOREIGN KEY(team) REFERENCES team (name)
);
INSERT INTO "web_session" VALUES('{}','{}','{}','{}','{}',1.0,'{}',1.0,'{}');
CREATE TABLE webhook (
	id TEXT NOT NULL, 
	team TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	target TEXT NOT NULL, 
	topics TEXT NOT NULL, 
	secrets BLOB NOT NULL, 
	created_at FLOAT NOT NULL, 
	disabled_at FLOAT, 
	disabled_why TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_webhook PRIMARY KEY (id)
);
INSERT INTO "webhook" VALUES('{}','{}','{}','{}','{}',X'7B7D',1.0,1.0,'{}');
CREATE TABLE workflow (
	id TEXT NOT NULL, 
	team TEXT NOT NULL, 
	name TEXT NOT NULL, 
	request TEXT NOT NULL, 
	concurrency TEXT NOT NULL, 
	pushes TEXT NOT NULL, 
	state TEXT NOT NULL, 
	revision INTEGER NOT NULL, 
	registered_by TEXT NOT NULL, 
	account TEXT, 
	token TEXT, 
	secret BLOB, 
	created_at FLOAT NOT NULL, 
	changed_at FLOAT NOT NULL, 
	CONSTRAINT pk_workflow PRIMARY KEY (id), 
	CONSTRAINT uq_workflow_team_name UNIQUE (team, name)
);
INSERT INTO "workflow" VALUES('{}','{}','{}','{}','{}','{}','{}',1,'{}','{}','{}',X'7B7D',1.0,1.0);
CREATE TABLE workflow_firing (
	id INTEGER NOT NULL, 
	workflow_id TEXT NOT NULL, 
	"trigger" TEXT NOT NULL, 
	cause TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	state TEXT NOT NULL, 
	run_id TEXT, 
	message TEXT DEFAULT '' NOT NULL, 
	chain TEXT DEFAULT '[]' NOT NULL, 
	tries INTEGER DEFAULT '0' NOT NULL, 
	due_at FLOAT NOT NULL, 
	CONSTRAINT pk_workflow_firing PRIMARY KEY (id), 
	CONSTRAINT uq_workflow_firing_workflow_id_trigger_cause UNIQUE (workflow_id, "trigger", cause), 
	CONSTRAINT fk_workflow_firing_workflow_id FOREIGN KEY(workflow_id) REFERENCES workflow (id), 
	CONSTRAINT fk_workflow_firing_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "workflow_firing" VALUES(1,'{}','{}','{}',1.0,'{}','r-1','{}','{}',1,1.0);
CREATE TABLE workflow_trigger (
	workflow_id TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	ordinal INTEGER NOT NULL, 
	data TEXT NOT NULL, 
	seen FLOAT NOT NULL, 
	CONSTRAINT pk_workflow_trigger PRIMARY KEY (workflow_id, "key"), 
	CONSTRAINT fk_workflow_trigger_workflow_id FOREIGN KEY(workflow_id) REFERENCES workflow (id)
);
INSERT INTO "workflow_trigger" VALUES('{}','{}',1,'{}',1.0);
CREATE INDEX ix_run_team_created_at ON run (team, created_at);
CREATE INDEX ix_run_away ON run (away);
CREATE INDEX ix_run_open ON run (lease_owner) WHERE state != 'DONE';
CREATE INDEX ix_run_created_at ON run (created_at);
CREATE INDEX ix_event_run_id_id ON event (run_id, id);
CREATE INDEX ix_measurement_fingerprint_measured_at ON measurement (fingerprint, measured_at);
CREATE INDEX ix_measurement_similar_measured_at ON measurement (similar, measured_at);
CREATE INDEX ix_quote_request_team_created_at ON quote_request (team, created_at);
CREATE INDEX ix_quote_request_state ON quote_request (state);
CREATE INDEX ix_webhook_team ON webhook (team);
CREATE INDEX ix_login_attempt_address_at ON login_attempt (address, at);
CREATE INDEX ix_audit_at ON audit (at);
CREATE INDEX ix_outbox_run_id ON outbox (run_id);
CREATE INDEX ix_run_file_run_id_id ON run_file (run_id, id);
CREATE INDEX ix_quote_run_id_id ON quote (run_id, id);
CREATE INDEX ix_cluster_run_id ON cluster (run_id);
CREATE INDEX ix_endpoint_team_created_at ON endpoint (team, created_at);
CREATE INDEX ix_sink_state ON sink (state);
CREATE INDEX ix_model_version_run_id ON model_version (run_id);
CREATE INDEX ix_run_model_team_name_version ON run_model (team, name, version);
CREATE INDEX ix_notice_done_at_due_at ON notice (done_at, due_at);
CREATE INDEX ix_notice_webhook_id_at ON notice (webhook_id, at);
CREATE INDEX ix_ledger_day ON ledger (day);
CREATE INDEX ix_invite_team ON invite (team);
CREATE INDEX ix_upload_team ON upload (team);
CREATE INDEX ix_app_team_created_at ON app (team, created_at);
CREATE INDEX ix_app_home_id_state ON app (home_id, state);
CREATE INDEX ix_workflow_firing_workflow_id_id ON workflow_firing (workflow_id, id);
CREATE INDEX ix_workflow_firing_state ON workflow_firing (state);
CREATE INDEX ix_workflow_firing_run_id ON workflow_firing (run_id);
CREATE INDEX ix_task_experiment_id_state_reason ON task (experiment_id, state, reason);
CREATE INDEX ix_task_kept ON task (experiment_id, number) WHERE kept_model IS NOT NULL;
CREATE INDEX ix_task_model ON task (experiment_id, number) WHERE model_uri IS NOT NULL;
CREATE INDEX ix_member_account ON member (account);
CREATE INDEX ix_app_pass_app_id ON app_pass (app_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('run_file',1);
