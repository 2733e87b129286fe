CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
INSERT INTO "alembic_version" VALUES('0007');
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
	CONSTRAINT pk_audit PRIMARY KEY (id)
);
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
	CONSTRAINT pk_event PRIMARY KEY (id)
);
INSERT INTO "event" VALUES(1,'r-1',NULL,NULL,NULL,1000000.0,'run',NULL,'WAITING',NULL,'');
INSERT INTO "event" VALUES(2,'r-1',NULL,NULL,NULL,1000000.0,'run','WAITING','RUNNING',NULL,'');
INSERT INTO "event" VALUES(3,'r-1','a',0,0,1000000.0,'task','WAITING','PLANNED',NULL,'');
INSERT INTO "event" VALUES(4,'r-1','a',0,1,1000000.0,'task','PLANNED','ACQUIRING',NULL,'');
INSERT INTO "event" VALUES(5,'r-1','a',1,0,1000000.0,'task','WAITING','PLANNED',NULL,'');
INSERT INTO "event" VALUES(6,'r-1','a',1,1,1000000.0,'task','PLANNED','ACQUIRING',NULL,'');
INSERT INTO "event" VALUES(7,'r-1','a',0,1,1000000.0,'task','SAVING','DONE','SUCCEEDED','so');
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
	CONSTRAINT pk_run PRIMARY KEY (id)
);
INSERT INTO "run" VALUES('r-1','r','{}','/recipe.yaml','local','/code','file:///store','RUNNING',NULL,'',1000000.0,1000000.0,NULL,NULL,0.0,NULL,NULL,0.0,0.0,NULL,NULL,1,1.79531552355589389801e+09,2,'','',NULL,NULL,NULL);
CREATE TABLE submission (
	caller TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	run_id TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_submission PRIMARY KEY (caller, "key"), 
	CONSTRAINT fk_submission_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
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
	monthly_usd FLOAT, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_team PRIMARY KEY (name)
);
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
	CONSTRAINT pk_token PRIMARY KEY (name), 
	CONSTRAINT uq_token_digest UNIQUE (digest), 
	CONSTRAINT fk_token_team FOREIGN KEY(team) REFERENCES team (name)
);
CREATE TABLE web_session (
	digest TEXT NOT NULL, 
	name TEXT NOT NULL, 
	team TEXT, 
	scopes TEXT NOT NULL, 
	token TEXT, 
	expires_at FLOAT NOT NULL, 
	CONSTRAINT pk_web_session PRIMARY KEY (digest), 
	CONSTRAINT fk_web_session_team FOREIGN KEY(team) REFERENCES team (name)
);
CREATE INDEX ix_run_created_at ON run (created_at);
CREATE INDEX ix_run_team_created_at ON run (team, created_at);
CREATE INDEX ix_event_run_id_id ON event (run_id, id);
CREATE INDEX ix_measurement_similar_measured_at ON measurement (similar, measured_at);
CREATE INDEX ix_measurement_fingerprint_measured_at ON measurement (fingerprint, measured_at);
CREATE INDEX ix_audit_at ON audit (at);
CREATE INDEX ix_outbox_run_id ON outbox (run_id);
CREATE INDEX ix_quote_run_id_id ON quote (run_id, id);
CREATE INDEX ix_cluster_run_id ON cluster (run_id);
CREATE INDEX ix_task_kept ON task (experiment_id, number) WHERE kept_model IS NOT NULL;
CREATE INDEX ix_task_experiment_id_state_reason ON task (experiment_id, state, reason);
CREATE INDEX ix_task_model ON task (experiment_id, number) WHERE model_uri IS NOT NULL;
