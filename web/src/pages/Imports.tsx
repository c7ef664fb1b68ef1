/** DAG files that cannot be read: which DAGs that affects, the line, the traceback, and another try. */
import { api, ok } from '../api/client'
import { relative } from '../format'
import { useLive } from '../live/resource'
import { Button, Copy, Empty, Note, Skeleton } from '../parts/basic'
import { Head } from '../parts/Head'
import { Icon } from '../parts/icons'
import { attempt, toast } from '../parts/overlay'
import { ViewOnly } from '../parts/ViewOnly'
import { href, to } from '../shell/router'
import { may, mayAnywhere, mayChange } from '../shell/session'
import { t } from '../strings'
import { cause, fileToken } from './traceback'

export default function Imports() {
  const live = useLive('imports', () => ok(api.GET('/api/v2/importErrors', { params: { query: { limit: 200, order_by: ['-timestamp'] } } })), { on: ['runs'] })
  const dags = useLive('imports dags', () => ok(api.GET('/api/v2/dags', { params: { query: { limit: 200, has_import_errors: true } } })), { on: ['runs'] })
  const page = live.data.value
  const parse = (file: string) =>
    attempt(async () => {
      await ok(api.PUT('/api/v2/parseDagFile/{file_token}', { params: { path: { file_token: fileToken(file) } } }))
      toast(t.dag.reparsed)
    })
  return (
    <>
      <Head title={t.imports.title}>{!mayAnywhere('operator') && <ViewOnly text={t.rights.lookAny} />}</Head>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      {!page ? <Skeleton /> : page.import_errors.length === 0 ? (
        <div class="card"><Empty title={t.imports.none}><p>{t.imports.noneText}</p><a class="button" href={href('/dags')}>{t.tour.dags}</a></Empty></div>
      ) : (
        <div class="stack">
          {page.import_errors.map((one) => {
            const affected = dags.data.value?.dags.filter((dag) => dag.relative_fileloc === one.filename) ?? []
            const { line, text } = cause(one.stack_trace, one.filename)
            return (
              <section key={one.import_error_id} class="card">
                <header class="row wrap">
                  <Icon name="imports" />
                  <h2 class="mono" style={{ flex: '1 1 240px', overflowWrap: 'anywhere' }}>{one.filename}{line !== null && <span class="soft">, {t.imports.line(line)}</span>}</h2>
                  <span class="small dim">{t.imports.seen(relative(one.timestamp))}</span>
                  {(affected.length ? affected.every((dag) => mayChange(dag.dag_id)) : may('operator')) && <Button icon="clear" onClick={() => void parse(one.filename)}>{t.imports.again}</Button>}
                  <Copy text={one.stack_trace} />
                </header>
                <p class="pad wrong" style={{ paddingBottom: 0 }}><strong>{text}</strong></p>
                {affected.length > 0 && <p class="pad small" style={{ paddingBottom: 0 }}>{t.imports.affected} {affected.map((dag, at) => <>{at > 0 && ', '}<a key={dag.dag_id} class="link" href={href(`${to('dags', dag.dag_id, 'source')}${line === null ? '' : `?line=${line}`}`)}>{dag.dag_id}</a></>)}</p>}
                <pre class="code wrap" style={{ margin: '8px', maxHeight: '420px' }} tabIndex={0}>{one.stack_trace}</pre>
              </section>
            )
          })}
        </div>
      )}
    </>
  )
}
